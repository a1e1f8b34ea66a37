// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn decode` under mpirun: where keys may be cut, checks that pass and checks that fail.
#include "tests/distributed/program/command.hpp"
#include "tests/distributed/program/file_workload.hpp"
#include "tests/support/algorithm_names.hpp"

#include <functional>

namespace {

using namespace tree_attn::test;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("decode: a cut inside a leaf is refused for every algorithm") {
  const auto cut = [](int n_ranks, const std::string& backend, const std::string& shards, const Words& options) {
    return ranks(n_ranks, Words{"decode", "--seq-len", "777", "--heads", "4", "--head-dim", "64", "--backend", backend,
                                "--shards", shards, "--verify"} +
                              options);
  };
  std::vector<Ending> all;
  const auto refuse = [&](const Words& command, const std::string& key) {
    all.push_back({command, "--shards: key " + key + " is inside a leaf of 64 keys; cut shards at multiples of 64"});
  };
  refuse(cut(3, "cpu", "100,0,677", {"--compare", others()}), "100");
  refuse(cut(3, "cpu", "100,0,677", {"--algorithm", "paper"}), "100");
  refuse(cut(2, "emulated", "700,77", {"--dtype", "f32"}), "700");
  refuse(cut(3, "emulated", "100,0,677", {"--algorithm", "one-shot"}), "100");
  for (const std::string backend : {"cpu", "emulated"}) {
    // The last key may be anywhere, and ranks without keys at either end of the sequence.
    all.push_back({cut(4, backend, "0,640,137,0", {"--compare", others()}), ""});
  }
  check_endings(all);
}

TEST_CASE("decode: --verify fails where F32 is not enough, and in the report infinite errors are null and have not passed") {
  const Scratch scratch;
  FileWorkload huge = FileWorkload::draw(1, 1, 1, 1, 8, 4, 4);
  for (Elements* elements : {&huge.q, &huge.k})
    for (double& number : elements->values) number *= 1e20;
  huge.write(scratch.path("in"), "F32");
  const Result result = run(ranks(2, {"decode", "in", "--verify", "--compare", "paper", "--report", "report"}),
                            {.folder = scratch.folder().string()});
  CAPTURE(result.err);
  CHECK(result.status == 1);
  CHECK(result.out.find("FAILED") != std::string::npos);
  CHECK(result.out.find("inf") != std::string::npos);
  CHECK(lines_of_ours(result.err).at(0) == "tree_attn: check failed: two-level exceeds the error bound of the oracle");
  const nlohmann::json failed = nlohmann::json::parse(Scratch::read(scratch.path("report")))["runs"][0];
  CHECK(failed["max_abs_error"].is_null());
  CHECK(failed["passed"] == false);
}

TEST_CASE("decode: keys whose scores are below F32 count as masked, and one line names the first row of such keys alone") {
  const Scratch scratch;
  const auto decode = [&](const FileWorkload& workload, int n_ranks, const Words& options) {
    workload.write(scratch.path("in"), "F32");
    const Words words{"decode", scratch.path("in"), scratch.path("out"), "--scale", "1", "--verify"};
    const Result result = run(n_ranks == 1 ? alone(words + options) : ranks(n_ranks, words + options));
    CAPTURE(result.err);
    CHECK(result.status == 0);
    const Words lines = lines_of_ours(result.err);
    REQUIRE(lines.size() == 1);
    return lines[0];
  };
  FileWorkload low = FileWorkload::draw(1, 1, 1, 1, 3, 1, 2);
  low.q.values = {1}, low.k.values = std::vector<double>(3, std::numeric_limits<float>::lowest());
  for (const char* backend : {"cpu", "emulated"}) {
    const std::string line = decode(low, 2, {"--backend", backend, "--compare", "paper,ring"});
    CHECK(line.starts_with("tree_attn: warning: batch entry 0, head 0, query 0: out or lse is not finite"));
    CHECK(tensor<float>(scratch.path("out"), "lse", {1, 1, 1}) == std::vector<float>{-INFINITY});
  }
  // A mask of the least number, as other programs make it, hides the only key from queries 3 and 4.
  FileWorkload masked = FileWorkload::draw(2, 1, 1, 5, 1, 1, 2);
  masked.lengths = {0, 1}, masked.mask_shape = {1, 1, 5, 1}, masked.hidden = std::numeric_limits<float>::lowest();
  CHECK(decode(masked, 1, {}).starts_with("tree_attn: warning: batch entry 1, head 0, query 3: "));
}

TEST_CASE("decode: of values whose sum exceeds F32 one line names the first row, and the others have their average") {
  const Scratch scratch;
  FileWorkload large = FileWorkload::draw(1, 2, 2, 1, 130, 4, 2);
  std::fill(large.v.values.begin() + 130 * 2, large.v.values.end(), 3e38);
  large.write(scratch.path("in"), "F32");
  const Result result = run(ranks(2, {"decode", scratch.path("in"), scratch.path("out"), "--compare", "paper"}));
  CHECK(result.status == 0);
  const Words lines = lines_of_ours(result.err);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].starts_with("tree_attn: warning: batch entry 0, head 1, query 0: out or lse is not finite"));
  const std::vector<float> out = tensor<float>(scratch.path("out"), "out", {1, 2, 1, 2});
  const std::vector<double> exact = work_out(large).out;
  for (std::size_t i = 0; i < 2; ++i) CHECK(std::abs(out[i] - exact[i]) < 1e-5);
  for (std::size_t i = 2; i < 4; ++i) CHECK(std::isinf(out[i]));
}

TEST_CASE("decode: --expect holds the output against a trained transformer's own") {
  const Result good = run(ranks(3, {"decode", kLayer, "--expect", "expected", "--compare", "paper"}));
  check_silent_success(good);
  for (const char* algorithm : {"two-level", "paper"}) {
    CHECK(good.out.find(std::string(algorithm) + ": differs from \"expected\" by at most ") != std::string::npos);
  }
  for (const Words& command : {alone({"decode", kLayer, "--expect", "expected", "--tolerance", "1e-9"}),
                               ranks(2, {"decode", kLayer, "--expect", "expected", "--tolerance", "1e-9"})}) {
    const Result bad = run(command);
    CAPTURE(bad.err);
    CHECK(bad.status == 1);
    CHECK(lines_of_ours(bad.err) ==
          Words{"tree_attn: check failed: two-level differs from \"expected\" by more than --tolerance"});
  }
}

/// The spoilt component is the first: what comes after it is as expected, and must not make up for it.
TEST_CASE("decode: --expect fails for what is not finite, in the tensor, in the output and in both") {
  const Scratch scratch;
  FileWorkload good = FileWorkload::draw(1, 1, 1, 1, 40, 4, 3);
  good.zeta = {{1, 1, 1, 3}, work_out(good).out};
  const auto decode = [&](const FileWorkload& workload) {
    workload.write(scratch.path("in"), "F32");
    return run(alone({"decode", scratch.path("in"), "--expect", "zeta"}));
  };
  check_silent_success(decode(good));
  for (const double odd : {std::numeric_limits<double>::quiet_NaN(), kInfinity, -kInfinity}) {
    for (const auto& [in_tensor, in_output] : {std::pair{true, false}, std::pair{false, true}, std::pair{true, true}}) {
      CAPTURE(in_tensor);
      CAPTURE(in_output);
      FileWorkload bad = good;
      if (in_tensor) bad.zeta->at(0, 0, 0, 0) = odd;
      if (in_output) bad.v.at(0, 0, 20, 0) = odd;
      const Result result = decode(bad);
      CHECK(result.status == 1);
      const Words lines = lines_of_ours(result.err);
      REQUIRE(lines.size() == (in_output ? 2 : 1));
      CHECK(lines[0] == "tree_attn: check failed: two-level differs from \"zeta\" by more than --tolerance");
      if (in_output) CHECK(lines[1].starts_with("tree_attn: warning: batch entry 0, head 0, query 0: "));
    }
  }
}

TEST_CASE("decode: rules, sinks, masks, caps and F8_E4M3 in files: the bits of any ranks and of steps, near the oracle") {
  const Scratch scratch;
  struct Case {
    const char* backend;
    Words options;
    std::function<void(FileWorkload&)> change = [](FileWorkload&) {};
    const char* dtype = "F32";
    std::int64_t d_v = 24;
  };
  const Words seen{"--causal", "--window", "100", "--sinks", "66"}, cap{"--softcap", "2"};
  const auto sink = [](FileWorkload& in) { in.sink = {1, -2, 0.5f, 40}; };
  const auto boolean_mask = [](FileWorkload& in) { in.mask_shape = {1, 1, 3, 500}, in.mask_is_boolean = true; };
  const auto sink_and_mask = [&](FileWorkload& in) { sink(in), in.mask_shape = {2, 4, 3, 500}; };
  const auto scales = [](FileWorkload& in) { in.k_scale = {0.3f, 1, 2.5f, 0.01f}, in.v_scale = {1, 3.7f, 0.125f, 1e-3f}; };
  const auto scaled_keys = [&](FileWorkload& in) { scales(in), in.v = {}, in.v_scale = {}; };
  for (const Case& c : {Case{"cpu", {"--causal"}}, Case{"cpu", seen, sink}, Case{"emulated", {"--window", "70"}, sink},
                        Case{"emulated", seen}, Case{"cpu", cap, boolean_mask}, Case{"cpu", seen, sink_and_mask},
                        Case{"cpu", cap, sink_and_mask}, Case{"cpu", {"--causal"}, scales, "F8_E4M3"},
                        Case{"cpu", {"--scale", "0.2"}, [](FileWorkload&) {}, "F8_E4M3"},
                        Case{"cpu", {"--value-dim", "8"}, scaled_keys, "F8_E4M3", 8}}) {
    CAPTURE(on_one_line(c.options.back() + " on " + c.backend + " of " + c.dtype));
    FileWorkload workload = FileWorkload::draw(2, 4, 2, 3, 500, 16, 24);
    workload.lengths = {500, 70};
    c.change(workload);
    workload.write(scratch.path("in"), c.dtype);
    const auto decode = [&](const char* out) {
      return Words{"decode", scratch.path("in"), scratch.path(out), "--verify", "--backend", c.backend} + c.options;
    };
    check_silent_success(run(alone(decode("one"))));
    check_silent_success(run(ranks(3, decode("three") + Words{"--compare", "paper,ring"})));
    CHECK((Scratch::read(scratch.path("one")) == Scratch::read(scratch.path("three"))));
    check_silent_success(run(alone(Words{"oracle", scratch.path("in"), scratch.path("exact")} + c.options)));
    const std::vector<std::int64_t> axes{2, 4, 3, c.d_v};
    const std::vector<float> out = tensor<float>(scratch.path("one"), "out", axes);
    check_near(out, tensor<double>(scratch.path("exact"), "out", axes), 1e-5);
    // The last step has the last row of the mask.
    check_silent_success(run(ranks(2, decode("steps") + Words{"--steps", "3"})));
    const std::vector<float> last = tensor<float>(scratch.path("steps"), "out", {2, 4, 1, c.d_v});
    const auto d_v = static_cast<std::size_t>(c.d_v);
    for (std::size_t r = 0; r < 8; ++r)
      for (std::size_t i = 0; i < d_v; ++i) CHECK(last[r * d_v + i] == out[(r * 3 + 2) * d_v + i]);
  }
}
