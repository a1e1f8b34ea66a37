// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn oracle`: the numbers of the library's oracle, in files by shape and type.
#include "tree_attn/tests/distributed/program/command.hpp"
#include "tree_attn/tests/distributed/program/file_workload.hpp"

#include <set>

namespace {

constexpr double kAllowed = 1e-12;

/// Runs the oracle on a problem; the file that it wrote.
std::string oracle(const Scratch& scratch, const FileWorkload& workload, const std::string& dtype,
                   const Words& options = {}) {
  workload.write(scratch.path("in"), dtype);
  const Result result = run(alone(Words{"oracle", scratch.path("in"), scratch.path("out")} + options));
  check_silent_success(result);
  CHECK(result.out == "");
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

TEST_CASE("comparison: a NaN or an Inf in any place is an error that no later element hides") {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> truth{1, 2, -inf};
  CHECK(largest_error(std::vector<double>{1, 2.5, -inf}, truth) == 0.5);
  for (const std::vector<double>& bad :
       std::vector<std::vector<double>>{{nan, 2, -inf}, {1, inf, -inf}, {1, 2, inf}, {1, 2, nan}, {1, 2, 3}})
    CHECK(largest_error(bad, truth) == inf);
  CHECK(largest_error(truth, {nan, 2, -inf}) == inf);
}

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

TEST_CASE("oracle: scale and causal mask, lengths, no keys, no batch entries") {
  const Scratch scratch;
  FileWorkload workload = FileWorkload::draw(3, 4, 1, 5, 12, 8, 8, true);
  check_file(oracle(scratch, workload, "F32", {"--scale", "0.25"}), workload, work_out(workload, 0.25));
  check_file(oracle(scratch, workload, "F32", {"--scale=-1"}), workload, work_out(workload, -1));
  check_file(oracle(scratch, workload, "F32", {"--causal"}), workload, work_out(workload, {}, true));

  // Entries in full, in part, with none, and with fewer keys than there are causal queries.
  workload.lengths = {12, 0, 3};
  check_file(oracle(scratch, workload, "BF16"), workload, work_out(workload));
  check_file(oracle(scratch, workload, "BF16", {"--causal"}), workload, work_out(workload, {}, true));

  const FileWorkload no_keys = FileWorkload::draw(2, 2, 2, 1, 0, 8, 4, true);
  const tree_attn::AttentionResult nothing = work_out(no_keys);
  CHECK(nothing.lse == std::vector<double>(4, -std::numeric_limits<double>::infinity()));
  check_file(oracle(scratch, no_keys, "F16"), no_keys, nothing);
  const FileWorkload no_batch = FileWorkload::draw(0, 2, 2, 1, 5, 8, 4);
  check_file(oracle(scratch, no_batch, "F32"), no_batch, {});
}

TEST_CASE("oracle: what lies behind lengths is not read") {
  const Scratch scratch;
  FileWorkload workload = FileWorkload::draw(2, 2, 1, 2, 40, 8, 8, true);
  workload.lengths = {17, 0};
  const std::string clean = Scratch::read(oracle(scratch, workload, "F32"));
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t a = workload.lengths[static_cast<std::size_t>(b)]; a < 40; ++a) {
      for (std::int64_t c = 0; c < 8; ++c)
        workload.k.at(b, 0, a, c) = workload.v.at(b, 0, a, c) = std::numeric_limits<double>::quiet_NaN();
    }
  }
  CHECK((Scratch::read(oracle(scratch, workload, "F32")) == clean));
}
