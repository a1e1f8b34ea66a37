// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn oracle`: the numbers of the library's oracle, in files by shape and type.
#include "tests/distributed/program/command.hpp"
#include "tests/distributed/program/file_workload.hpp"

#include <set>

namespace {

constexpr double kAllowed = 1e-12;

/// Runs the oracle on a problem; the file that it wrote.
std::string oracle(const Scratch& scratch, const FileWorkload& workload, const std::string& dtype,
                   const Words& options = {}) {
  workload.write(scratch.path("in"), dtype);
  const Result result = run(alone(Words{"oracle", scratch.path("in"), scratch.path("out")} + options));
  check_silent_success(result);
  CHECK(result.out.starts_with(scratch.path("out") + ": out [" + std::to_string(workload.q.shape[0]) + ", "));
  CHECK(result.out.find("], energy [") == (workload.zeta ? result.out.find(", energy") - 1 : std::string::npos));
  return scratch.path("out");
}

/// All that was written, against the truth.
void check_file(const std::string& path, const FileWorkload& workload, const tree_attn::AttentionResult& truth) {
  const std::vector<std::int64_t> rows{workload.q.shape[0], workload.q.shape[1], workload.q.shape[2]};
  std::vector<std::int64_t> vectors = rows;
  vectors.push_back(workload.v.shape[3]);
  check_near(tensor<double>(path, "out", vectors), truth.out, kAllowed);
  check_near(tensor<double>(path, "lse", rows), truth.lse, kAllowed);
  if (workload.zeta) {
    check_near(tensor<double>(path, "energy", rows), truth.energy, kAllowed);
    check_near(tensor<double>(path, "gradient", vectors), truth.gradient, kAllowed);
  }
  CHECK(tree_attn::SafetensorsFile::open(path).tensors().size() == (workload.zeta ? 4 : 2));
}

}  // namespace

TEST_CASE("oracle: out and lse, energy and gradient, the same bytes from every type that holds the input exactly") {
  const Scratch scratch;
  const FileWorkload workload = FileWorkload::draw(2, 4, 2, 3, 70, 16, 24, true);
  const tree_attn::AttentionResult truth = work_out(workload);
  std::set<std::string> bytes;
  for (const std::string dtype : {"F64", "F32", "F16", "BF16"}) {
    CAPTURE(dtype);
    const std::string out = oracle(scratch, workload, dtype);
    check_file(out, workload, truth);
    bytes.insert(Scratch::read(out));
  }
  CHECK(bytes.size() == 1);
}

TEST_CASE("oracle: scale and causal mask, lengths, scales of F8_E4M3, no keys, no batch entries") {
  const Scratch scratch;
  FileWorkload workload = FileWorkload::draw(3, 4, 1, 5, 12, 8, 8, true);
  check_file(oracle(scratch, workload, "F32", {"--scale", "0.25"}), workload, work_out(workload, {.scale = 0.25}));
  check_file(oracle(scratch, workload, "F32", {"--scale=-1"}), workload, work_out(workload, {.scale = -1}));
  check_file(oracle(scratch, workload, "F32", {"--causal"}), workload, work_out(workload, {.rule = {.causal = true}}));

  // Entries in full, in part, with none, and with fewer keys than there are causal queries.
  workload.lengths = {12, 0, 3};
  check_file(oracle(scratch, workload, "BF16"), workload, work_out(workload));
  check_file(oracle(scratch, workload, "BF16", {"--causal"}), workload, work_out(workload, {.rule = {.causal = true}}));

  // Scales of F8_E4M3, a factor for every head.
  workload.zeta = std::nullopt;
  workload.k_scale = {0.3f, 1, 2.5f}, workload.v_scale = {3.7f, 0.125f, 1e-3f};
  check_file(oracle(scratch, workload, "F8_E4M3"), workload, work_out(workload));

  const FileWorkload no_keys = FileWorkload::draw(2, 2, 2, 1, 0, 8, 4, true);
  const tree_attn::AttentionResult nothing = work_out(no_keys);
  CHECK(nothing.lse == std::vector<double>(4, -std::numeric_limits<double>::infinity()));
  check_file(oracle(scratch, no_keys, "F16"), no_keys, nothing);
  const FileWorkload no_batch = FileWorkload::draw(0, 2, 2, 1, 5, 8, 4);
  check_file(oracle(scratch, no_batch, "F32"), no_batch, {});
}
