// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn decode` under mpirun: where keys may be cut, checks that pass and checks that fail.
#include "tree_attn/tests/distributed/program/command.hpp"
#include "tree_attn/tests/distributed/program/file_workload.hpp"
#include "tree_attn/tests/support/algorithm_names.hpp"

#include <nlohmann/json.hpp>

#include <set>

namespace {

using namespace tree_attn::test;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Digests of the runs of a report.
std::set<std::string> digests(const std::string& path) {
  std::set<std::string> found;
  const nlohmann::json report = nlohmann::json::parse(Scratch::read(path));
  for (const auto& each : report["runs"]) found.insert(each["output_digest"].get<std::string>());
  return found;
}

}  // namespace

TEST_CASE("decode: a cut inside a leaf is refused where bits are promised, and taken where they are not") {
  const auto cut = [](int n_ranks, const std::string& backend, const std::string& shards, const Words& options) {
    return ranks(n_ranks, Words{"decode", "--seq-len", "777", "--heads", "4", "--head-dim", "64", "--backend", backend,
                                "--shards", shards, "--verify"} +
                              options);
  };
  std::vector<Words> refused, taken;
  std::vector<std::string> lines;
  const auto refuse = [&](const Words& command, const std::string& key, const std::string& algorithm) {
    refused.push_back(command);
    lines.push_back("--shards: key " + key + " is inside a leaf of 64 keys; " + algorithm +
                    " keeps its bits where shards are cut");
  };
  for (const std::string& algorithm : names(keeps_bits))
    refuse(cut(3, "cpu", "100,0,677", {"--algorithm", algorithm}), "100", algorithm);
  refuse(cut(3, "cpu", "100,0,677", {"--algorithm", "paper", "--compare", "packed,gather"}), "100", "gather");
  refuse(cut(2, "emulated", "700,77", {"--dtype", "f32"}), "700", "two-level");
  for (const std::string backend : {"cpu", "emulated"}) {
    taken.push_back(cut(3, backend, "100,0,677", {"--algorithm", "paper", "--compare", others(keeps_no_bits)}));
    // The last key may be anywhere, and ranks without keys at either end of the sequence.
    taken.push_back(cut(4, backend, "0,640,137,0", {"--compare", others(keeps_bits)}));
  }
  refuse(cut(3, "emulated", "100,0,677", {"--algorithm", "one-shot"}), "100", "one-shot");
  const std::vector<Result> results = run_all(refused);
  for (std::size_t i = 0; i < results.size(); ++i) check_one_line(results[i], lines[i]);
  for (const Result& result : run_all(taken)) check_silent_success(result);
}

TEST_CASE("decode: made-up input depends on the seed, not on the ranks, and without keys or batch entries it is nothing") {
  const Scratch scratch;
  const auto digest = [&](int n_ranks, const Words& options) {
    check_silent_success(run(ranks(
        n_ranks, "decode --seq-len 500 --kv-heads 2 --verify --report"_words + Words{scratch.path("report")} + options)));
    return *digests(scratch.path("report")).begin();
  };
  CHECK(digest(1, {"--seed", "7"}) == digest(3, {"--seed", "7"}));
  CHECK(digest(1, {"--seed", "7"}) != digest(1, {"--seed", "8"}));
  for (const char* option : {"--batch", "--seq-len"})
    check_silent_success(run(ranks(2, {"decode", option, "0", "--compare", others(), "--verify"})));
}

TEST_CASE("decode: --verify fails where F32 is not enough, and in the report infinite errors are null and have not passed") {
  const Scratch scratch;
  FileWorkload::draw_overflowing().write(scratch.path("in"), "F32");
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
    const std::vector<std::string> lines = lines_of_ours(bad.err);
    CHECK(lines.size() == 1);
    CHECK(lines.at(0) == "tree_attn: check failed: two-level differs from \"expected\" by more than --tolerance");
  }
}

/// The spoilt component is the first: what comes after it is as expected, and must not make up for it.
TEST_CASE("decode: --expect fails for what is not finite, in the tensor, in the output and in both") {
  const Scratch scratch;
  FileWorkload good = FileWorkload::draw(1, 1, 1, 1, 40, 4, 3);
  good.zeta = {{1, 1, 1, 3}, work_out(good).out};
  std::vector<FileWorkload> workloads{good};
  std::vector<bool> has_bad_output{false};
  for (const double odd : {std::numeric_limits<double>::quiet_NaN(), kInfinity, -kInfinity}) {
    for (const auto& [in_tensor, in_output] : {std::pair{true, false}, std::pair{false, true}, std::pair{true, true}}) {
      FileWorkload bad = good;
      if (in_tensor) bad.zeta->at(0, 0, 0, 0) = odd;
      if (in_output) bad.v.at(0, 0, 20, 0) = odd;
      workloads.push_back(bad), has_bad_output.push_back(in_output);
    }
  }
  std::vector<Words> commands;
  for (std::size_t i = 0; i < workloads.size(); ++i) {
    workloads[i].write(scratch.path(std::to_string(i)), "F32");
    commands.push_back(alone({"decode", scratch.path(std::to_string(i)), "--expect", "zeta"}));
  }
  const std::vector<Result> results = run_all(commands);
  check_silent_success(results[0]);
  for (std::size_t i = 1; i < results.size(); ++i) {
    CAPTURE(i);
    CHECK(results[i].status == 1);
    const Words lines = lines_of_ours(results[i].err);
    REQUIRE(lines.size() == (has_bad_output[i] ? 2 : 1));
    CHECK(lines[0] == "tree_attn: check failed: two-level differs from \"zeta\" by more than --tolerance");
    if (has_bad_output[i]) CHECK(lines[1].starts_with("tree_attn: warning: batch entry 0, head 0, query 0: "));
  }
}
