// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn decode` under mpirun: the same bytes however the keys are cut, checks that pass and checks that fail.
#include "tree_attn/tests/distributed/program/command.hpp"
#include "tree_attn/tests/distributed/program/file_workload.hpp"
#include "tree_attn/tests/support/algorithm_names.hpp"
#include "tree_attn/tests/support/sweep.hpp"

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

/// Where the keys are cut: ranks, keys of each, ranks that pose as a node.
struct Cut {
  int n_ranks;
  std::string shards, ranks_per_node;
};

Words options_of(const Cut& cut) {
  Words options;
  if (!cut.shards.empty()) options = options + Words{"--shards", cut.shards};
  if (!cut.ranks_per_node.empty()) options = options + Words{"--ranks-per-node", cut.ranks_per_node};
  return options;
}

/// Decodes a file; the bytes of OUT, once all canonical algorithms are known to agree on them.
std::string decode(const Scratch& scratch, const std::string& in, const Cut& cut,
                   const std::string& algorithm = "two-level") {
  CAPTURE(cut.n_ranks);
  CAPTURE(cut.shards);
  CAPTURE(cut.ranks_per_node);
  const Words arguments = Words{"decode",
                                in,
                                scratch.path("out"),
                                "--algorithm",
                                algorithm,
                                "--compare",
                                others(keeps_bits) + ",two-level",
                                "--report",
                                scratch.path("report")} +
                          options_of(cut);
  check_silent_success(run(cut.n_ranks == 1 ? alone(arguments) : ranks(cut.n_ranks, arguments)));
  CHECK(digests(scratch.path("report")).size() == 1);
  return Scratch::read(scratch.path("out"));
}

std::vector<float> out_of(const Scratch& scratch, const FileWorkload& workload, const std::string& name) {
  std::vector<std::int64_t> shape{workload.q.shape[0], workload.q.shape[1], workload.q.shape[2]};
  if (name == "out") shape.push_back(workload.v.shape[3]);
  return tensor<float>(scratch.path("out"), name, shape);
}

}  // namespace

TEST_CASE("decode: OUT has the same bytes for every number of ranks, cut, pretended node and canonical algorithm") {
  const Scratch scratch;
  FileWorkload workload = FileWorkload::draw(3, 4, 2, 2, 1000, 16, 24);
  workload.lengths = {1000, 0, 437};
  workload.write(scratch.path("in"), "BF16");
  const std::string bytes = decode(scratch, scratch.path("in"), {1, "", ""});

  // They are the right ones, with F32's rounding.
  const Truth truth = work_out(workload);
  check_near(out_of(scratch, workload, "out"), truth.out, 1e-5);
  check_near(out_of(scratch, workload, "lse"), truth.lse, 1e-5);

  for (const Cut& cut : {Cut{2, "", ""}, Cut{3, "64,896,40", "2"}, Cut{3, "0,0,1000", "1"}, Cut{5, "0,64,512,0,424", "3"}})
    CHECK((decode(scratch, scratch.path("in"), cut) == bytes));
  // OUT is that of --algorithm, not of --compare.
  CHECK((decode(scratch, scratch.path("in"), {3, "320,320,360", "2"}, "gather") == bytes));

  // Every type that holds the input exactly gives the same bytes too.
  for (const std::string dtype : {"F64", "F32", "F16"}) {
    CAPTURE(dtype);
    workload.write(scratch.path("in"), dtype);
    CHECK((decode(scratch, scratch.path("in"), {1, "", ""}) == bytes));
  }
}

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

TEST_CASE("decode: the last of many steps is the one step of a single one") {
  const Scratch scratch;
  // From a file, query i is that of step i; the last sees all keys.
  FileWorkload workload = FileWorkload::draw(2, 2, 1, 6, 150, 16, 16);
  workload.lengths = {150, 3};
  workload.write(scratch.path("many"), "F32");
  const std::string out = scratch.path("out");
  FileWorkload last = workload;
  last.q = FileWorkload::draw(2, 2, 1, 1, 0, 16, 16).q;
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t c = 0; c < 16; ++c) last.q.at(b, h, 0, c) = workload.q.at(b, h, 5, c);
    }
  }
  last.write(scratch.path("one"), "F32");
  for (const std::string order : {"contiguous", "dealt"}) {
    CAPTURE(order);
    const Words how{out, "--compare", others(keeps_bits), "--report", scratch.path("report"), "--order", order};
    check_silent_success(run(ranks(3, Words{"decode", scratch.path("many"), "--steps", "6"} + how)));
    CHECK(digests(scratch.path("report")).size() == 1);
    const std::string many = Scratch::read(out);
    check_silent_success(run(ranks(order == "dealt" ? 4 : 2, Words{"decode", scratch.path("one"), "--verify"} + how)));
    CHECK((Scratch::read(out) == many));
    check_near(out_of(scratch, last, "out"), work_out(last).out, 1e-5);
  }
}

/// @tested{thm_1, Thm. 1}
TEST_CASE("decode: an order of leaves has the same bits for any ranks, nodes and steps, and is verified, on every backend") {
  const Scratch scratch;
  std::set<std::string> of_all;
  struct Case {
    std::string backend, dtype, n_steps = "1";
  };
  // More steps than a leaf has keys.
  for (const auto& [backend, dtype, n_steps] :
       {Case{"cpu", "bf16", "70"}, {"emulated", "f32"}, {"emulated", "f16"}, {"emulated", "bf16"}}) {
    if (!takes_all_cases() && (dtype == "f16" || dtype == "f32")) continue;
    for (const std::string order : {"contiguous", "dealt"}) {
      std::set<std::string> found;
      const auto decode = [&](int n_ranks, const Words& options) {
        const Words arguments = Words{"decode", "--backend", backend, "--dtype", dtype, "--order", order} +
                                "--seq-len 777 --heads 4 --kv-heads 2 --batch 2"_words + Words{"--compare", others()} +
                                "--verify --head-dim 16"_words + Words{"--report", scratch.path("report")} + options;
        check_silent_success(run(n_ranks == 1 ? alone(arguments) : ranks(n_ranks, arguments)));
        const nlohmann::json runs = nlohmann::json::parse(Scratch::read(scratch.path("report")))["runs"];
        for (const auto& each : runs) {
          CAPTURE(each.dump());
          CHECK(each["order"] == order);
          CHECK(each["same_bits_on_all_ranks"] == true);
          for (const char* count : {"bytes_per_step", "messages_per_step"}) CHECK(each[count] == each["predicted"][count]);
          if (tree_attn::find_algorithm(each["algorithm"].get<std::string>()).keeps_bits)
            found.insert(each["output_digest"].get<std::string>());
        }
      };
      decode(1, {"--steps", n_steps});
      decode(3, {"--steps", "5", "--repeat", "2", "--ranks-per-node", "2"});
      decode(4, {"--ranks-per-node", "1"});
      CHECK(found.size() == 1);
      of_all.merge(found);
    }
  }
  CHECK(of_all.size() == (takes_all_cases() ? 8 : 4));
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
