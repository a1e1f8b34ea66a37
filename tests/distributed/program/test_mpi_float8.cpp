// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn decode` of keys and values in F8_E4M3: files with scales, synthetic ones, steps, and what is refused.
#include "tree_attn/tests/distributed/program/command.hpp"
#include "tree_attn/tests/distributed/program/file_workload.hpp"

#include <nlohmann/json.hpp>

namespace {

using namespace tree_attn::test;

/// A file of 2 entries, 4 heads over 2, 3 queries and 300 keys, with every number of a format that holds it.
struct Float8File {
  FileWorkload workload = FileWorkload::draw(2, 4, 2, 3, 300, 16, 24);
  std::vector<float> k_scale{0.3f, 1, 2.5f, 0.01f}, v_scale{1, 3.7f, 0.125f, 1e-3f};
  std::string q_type = "BF16", scale_type = "F32";
  std::vector<std::int64_t> scale_shape{2, 2};
  bool has_values = true;

  /// Multiples of 1/8 up to 2 have four bits: sign, exponent with its bias of 127 made 7, three bits of the fraction.
  static std::string eight_bits(const Elements& elements) {
    std::string bytes;
    for (const double value : elements.values) {
      const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
      bytes += static_cast<char>(value == 0 ? 0 : (bits >> 24 & 0x80) | ((bits >> 20 & 0x7FF) - ((127 - 7) << 3)));
    }
    return bytes;
  }
  void write(const std::string& path) const {
    const auto bytes = [](const std::string& text) { return std::as_bytes(std::span(text)); };
    const std::string q = stored(workload.q.values, q_type), k = eight_bits(workload.k), v = eight_bits(workload.v);
    tree_attn::SafetensorsWriter writer;
    writer.add("q", q_type, workload.q.shape, bytes(q));
    writer.add("k", "F8_E4M3", workload.k.shape, bytes(k));
    if (has_values) writer.add("v", "F8_E4M3", workload.v.shape, bytes(v));
    if (!k_scale.empty()) writer.add("k_scale", scale_type, scale_shape, std::as_bytes(std::span(k_scale)));
    if (!v_scale.empty()) writer.add("v_scale", "F32", {{2, 2}}, std::as_bytes(std::span(v_scale)));
    writer.write(path);
  }
  /// The same with scaled numbers.
  FileWorkload scaled() const {
    FileWorkload wide = workload;
    for (auto& [elements, scales] : {std::pair(&wide.k, &k_scale), {&wide.v, &v_scale}}) {
      const std::size_t of_head = elements->values.size() / 4;
      for (std::size_t i = 0; i < elements->values.size() && !scales->empty(); ++i)
        elements->values[i] *= static_cast<double>((*scales)[i / of_head]);
    }
    return wide;
  }
};

std::vector<double> numbers(const std::vector<float>& x) { return {x.begin(), x.end()}; }

}  // namespace

TEST_CASE("decode: a file of F8_E4M3 with scales is near the truth, by every rank and algorithm, and in steps") {
  const Scratch scratch;
  for (const bool has_scales : {true, false}) {
    Float8File file;
    if (!has_scales) file.k_scale = file.v_scale = {};
    file.write(scratch.path("in"));
    const tree_attn::AttentionResult truth = work_out(file.scaled(), {}, true);
    const std::vector<std::int64_t> shape{2, 4, 3, 24};
    const auto decode = [&](const std::string& out) {
      return Words{"decode",   scratch.path("in"), scratch.path(out),     "--causal",
                   "--verify", "--report",         scratch.path("report")};
    };
    check_silent_success(run(alone(decode("one"))));
    check_silent_success(run(ranks(3, decode("three") + Words{"--compare", "ring,gather,paper,packed,fused,leaders"})));
    CHECK((Scratch::read(scratch.path("one")) == Scratch::read(scratch.path("three"))));
    check_near(numbers(tensor<float>(scratch.path("three"), "out", shape)), truth.out, 1e-5);
    check_silent_success(run(alone({"oracle", scratch.path("in"), scratch.path("exact"), "--causal"})));
    check_near(tensor<double>(scratch.path("exact"), "out", shape), truth.out, 1e-12);
    CHECK(nlohmann::json::parse(Scratch::read(scratch.path("report")))["runs"][0]["dtype"] == "f8_e4m3");

    // The last of three steps, which append rows as they are.
    check_silent_success(run(ranks(2, {"decode", scratch.path("in"), scratch.path("steps"), "--steps", "3", "--verify"})));
    const std::vector<float> last = tensor<float>(scratch.path("steps"), "out", {2, 4, 1, 24}),
                             all = tensor<float>(scratch.path("three"), "out", shape);
    for (std::size_t row = 0; row < 8; ++row)
      for (std::size_t c = 0; c < 24; ++c) REQUIRE(last[row * 24 + c] == all[(row * 3 + 2) * 24 + c]);
  }
}

TEST_CASE("decode: synthetic F8_E4M3: the bits of ranks and steps, bytes, and what rounding costs") {
  const Scratch scratch;
  const auto report = [&](const Words& more, int n_ranks, const std::string& dtype) {
    const Words command =
        Words{"decode", "--seq-len", "400", "--heads", "6",   "--kv-heads", "3",        "--head-dim",
              "40",     "--batch",   "2",   "--dtype", dtype, "--verify",   "--report", scratch.path("report")} +
        more;
    check_silent_success(run(n_ranks == 1 ? alone(command) : ranks(n_ranks, command)));
    return nlohmann::json::parse(Scratch::read(scratch.path("report")))["runs"];
  };
  const auto alone_ = report({}, 1, "f8_e4m3"), three = report({"--compare", "ring,ring-state"}, 3, "f8_e4m3");
  for (const auto& each : three) CHECK(each["output_digest"] == alone_[0]["output_digest"]);
  CHECK(alone_[0]["quantisation_error"].get<double>() > 1e-3);
  CHECK(alone_[0]["quantisation_error"].get<double>() < 0.15);
  const auto wide = report({"--compare", "ring,ring-state"}, 3, "bf16");
  for (const auto& [key, i] : {std::pair{"bytes_per_step", 1}, {"peak_kv_bytes_per_rank", 0}}) {
    CHECK(three[i][key].get<std::int64_t>() > 0);
    CHECK(2 * three[i][key].get<std::int64_t>() == wide[i][key].get<std::int64_t>());
  }
  CHECK_FALSE(wide[0].contains("quantisation_error"));
  const auto grown = report({"--steps", "70"}, 2, "f8_e4m3"), whole = report({"--order", "dealt"}, 1, "f8_e4m3");
  CHECK(grown[0]["output_digest"] == whole[0]["output_digest"]);
}

TEST_CASE("decode: values that are components of keys of F8_E4M3 have the scale of the keys") {
  const Scratch scratch;
  Float8File file;
  file.write(scratch.path("both"));
  check_one_line(run(alone({"decode", scratch.path("both"), "--value-dim", "8"})), "there is a tensor \"v\"");
  file.has_values = false;
  file.write(scratch.path("scale"));
  check_one_line(run(alone({"decode", scratch.path("scale"), "--value-dim", "8"})), "leave \"v_scale\" out");
  file.v_scale = {};
  file.write(scratch.path("in"));
  check_silent_success(run(ranks(2, {"decode", scratch.path("in"), scratch.path("out"), "--value-dim", "8", "--verify"})));
  FileWorkload wide = file.scaled();
  wide.v = {{2, 2, 300, 8}, {}};
  for (std::size_t i = 0; i < wide.k.values.size(); ++i)
    if (i % 16 < 8) wide.v.values.push_back(wide.k.values[i]);
  check_near(numbers(tensor<float>(scratch.path("out"), "out", {2, 4, 3, 8})), work_out(wide).out, 1e-5);
}

TEST_CASE("decode: what F8_E4M3 does not have is one line: types, scales, moments, ranks that differ") {
  const Scratch scratch;
  const auto refused = [&](const std::function<void(Float8File&)>& change, const std::string& line) {
    Float8File file;
    change(file);
    file.write(scratch.path("in"));
    check_one_line(run(alone({"decode", scratch.path("in")})), line);
    check_one_line(run(alone({"oracle", scratch.path("in"), scratch.path("out")})), line);
  };
  refused([](Float8File& file) { file.q_type = "F32"; },
          "q is F32, k F8_E4M3, v F8_E4M3: they must have the same type; q may be BF16 where k is F8_E4M3");
  refused([](Float8File& file) { file.scale_shape = {4}; },
          "tensor \"k_scale\" must be F32 of shape [2, 2], one for each head");
  refused([](Float8File& file) { file.scale_type = "I32"; }, "tensor \"k_scale\" must be F32 of shape [2, 2]");
  for (const float bad : {0.0f, -1.0f, 1e31f, std::numeric_limits<float>::quiet_NaN()})
    refused([bad](Float8File& file) { file.v_scale[3] = bad; }, "at 3; scales are from 2^-100 to 2^100");
  FileWorkload::draw(2, 4, 2, 3, 300, 16, 24).write(scratch.path("wide"), "BF16");
  Float8File().write(scratch.path("in"));
  check_one_line(run(alone({"decode", scratch.path("in"), "--moments", "2"})), "not for keys and values of F8_E4M3");
  check_one_line(run(alone({"decode", "--dtype", "f8_e4m3", "--batch", "1048576", "--heads", "64", "--seq-len", "0"})),
                 "scales; at most 2^24");

  for (const int rank : {0, 1}) std::filesystem::create_directories(scratch.path(std::to_string(rank)));
  Float8File other;
  Float8File().write(scratch.path("0/in"));
  other.v_scale[2] = 2;
  other.write(scratch.path("1/in"));
  check_one_line(run(ranks(2, {"decode", "in", "out"}, in_own_folder(scratch.folder().string()))),
                 "rank 1: in differs from that of rank 0 in v_scale: all ranks need the same file");
}
