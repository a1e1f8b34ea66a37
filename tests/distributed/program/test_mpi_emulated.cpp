// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn decode --backend emulated`: the kernels behind the same command line, with the same promises.
#include "tree_attn/tests/distributed/program/command.hpp"
#include "tree_attn/tests/distributed/program/file_workload.hpp"
#include "tree_attn/tests/support/algorithm_names.hpp"

#include <nlohmann/json.hpp>

#include <map>
#include <set>

namespace {

using namespace tree_attn::test;

/// Four heads of 64 over 777 keys, which are neither a multiple of a leaf nor of anything else.
Words small(const std::string& dtype, const std::string& kv_heads) {
  return {"decode",     "--backend", "emulated", "--seq-len", "777",        "--heads", "4",
          "--head-dim", "64",        "--dtype",  dtype,       "--kv-heads", kv_heads};
}

/// A decode of made-up input, and what the report says of it.
struct Job {
  std::string dtype, kv_heads;
  int n_ranks;
  Words options;
};

/// Runs all of them, some at a time. @returns the digests of each job by algorithm
std::vector<std::map<std::string, std::string>> digests_of(const std::vector<Job>& jobs) {
  const Scratch scratch;
  std::vector<Words> commands;
  for (const Job& job : jobs) {
    const Words report{"--verify", "--report", scratch.path("report" + std::to_string(commands.size()))};
    commands.push_back(ranks(job.n_ranks, small(job.dtype, job.kv_heads) + job.options + report));
  }
  const std::vector<Result> results = run_all(commands);
  std::vector<std::map<std::string, std::string>> digests(jobs.size());
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    std::string typed;
    for (const std::string& word : commands[i]) typed += word + " ";
    CAPTURE(typed);
    check_silent_success(results[i]);
    if (results[i].status != 0) continue;
    const nlohmann::json report = nlohmann::json::parse(Scratch::read(scratch.path("report" + std::to_string(i))));
    for (const auto& each : report["runs"]) {
      CHECK(each["backend"] == "emulated");
      CHECK(each["same_bits_on_all_ranks"] == true);
      digests[i][each["algorithm"]] = each["output_digest"];
    }
  }
  return digests;
}

/// Digests of the algorithms that promise the same bits.
std::set<std::string> canonical(const std::map<std::string, std::string>& digests) {
  std::set<std::string> found;
  for (const auto& [algorithm, digest] : digests) {
    if (tree_attn::find_algorithm(algorithm).keeps_bits) found.insert(digest);
  }
  return found;
}

/// OUT of a file, by the kernels.
std::string out_of(const Scratch& scratch, const std::string& in, int n_ranks, const Words& options = {}) {
  const Words command =
      Words{"decode", scratch.path(in), scratch.path("out"), "--backend", "emulated", "--verify"} + options;
  check_silent_success(run(n_ranks == 1 ? alone(command) : ranks(n_ranks, command)));
  return Scratch::read(scratch.path("out"));
}

}  // namespace

/// @tested{alg_3, Alg. 3}
/// @tested{thm_1, Thm. 1}
TEST_CASE("emulated: all algorithms are within the bound, and those that keep bits do so for every number of ranks") {
  for (const std::string dtype : {"f32", "f16", "bf16"}) {
    for (const std::string kv_heads : {"4", "1"}) {
      std::vector<Job> jobs;
      for (const int n_ranks : {1, 2, 3, 5}) jobs.push_back({dtype, kv_heads, n_ranks, {"--compare", others()}});
      jobs.push_back({dtype, kv_heads, 3, {"--compare", others(), "--ranks-per-node", "2"}});
      jobs.push_back({dtype, kv_heads, 3, {"--compare", others(), "--shards", "128,0,649"}});
      // The last of three steps is the one step of a single one.
      jobs.push_back({dtype, kv_heads, 2, {"--compare", others(), "--steps", "3", "--order", "contiguous"}});
      std::set<std::string> found;
      for (const auto& digests : digests_of(jobs)) {
        CHECK(digests.size() == tree_attn::algorithms().size());
        found.merge(canonical(digests));
      }
      CAPTURE(dtype);
      CAPTURE(kv_heads);
      CHECK(found.size() == 1);
    }
  }
}

TEST_CASE("emulated: the program says which kernel was picked, and for how many keys") {
  for (const auto& [dtype, picked] :
       std::vector<std::pair<std::string, std::string>>{{"f32", "F32 on scalar"}, {"bf16", "BF16 on tensor"}}) {
    const Result result = run(ranks(2, {"decode", "--seq-len", "700", "--heads", "4", "--head-dim", "64", "--dtype", dtype,
                                        "--backend", "emulated", "--shards", "384,316"}));
    CHECK(result.status == 0);
    CHECK(result.out.find("kernel: short-end of " + picked + " cores: 4 blocks of ") != std::string::npos);
    CHECK(result.out.find("(384 keys of rank 0)") != std::string::npos);
  }
}

TEST_CASE("emulated: a file of every type, with lengths of its own and nothing in use among them") {
  const Scratch scratch;
  FileWorkload workload = FileWorkload::draw(3, 4, 4, 1, 300, 16, 24);
  workload.lengths = {300, 0, 137};
  const Truth truth = work_out(workload);
  std::map<std::string, std::string> bytes;
  for (const std::string dtype : {"F64", "F32", "F16", "BF16"}) {
    CAPTURE(dtype);
    workload.write(scratch.path("in"), dtype);
    bytes[dtype] = out_of(scratch, "in", 1);
    check_near(tensor<float>(scratch.path("out"), "out", {3, 4, 1, 24}), truth.out, 1e-5);
    check_near(tensor<float>(scratch.path("out"), "lse", {3, 4, 1}), truth.lse, 1e-5);
    CHECK((out_of(scratch, "in", 3, {"--shards", "64,192,44", "--ranks-per-node", "2"}) == bytes[dtype]));
    CHECK((out_of(scratch, "in", 3, {"--algorithm", "ring"}) == bytes[dtype]));
  }
  // F64 becomes F32 on its way to the device, and these numbers lose nothing.
  CHECK((bytes["F64"] == bytes["F32"]));
}

/// @tested{eq_cov, eq. (cov)}
TEST_CASE("emulated: moments ride along, in F32") {
  const Scratch scratch;
  FileWorkload workload = FileWorkload::draw(2, 4, 1, 2, 300, 16, 8);
  workload.lengths = {300, 0};
  workload.write(scratch.path("in"), "BF16");
  const Truth truth = work_out(workload);
  const auto named = [&](const std::string& name) {
    return tensor<float>(scratch.path("out"), name,
                         name == "entropy" ? std::vector<std::int64_t>{2, 4, 2} : std::vector<std::int64_t>{2, 4, 2, 8});
  };
  check_silent_success(run(alone({"decode", scratch.path("in"), scratch.path("out"), "--moments", "2"})));
  const std::vector<float> variance = named("variance"), entropy = named("entropy");
  const auto doubles = [](const std::vector<float>& x) { return std::vector<double>(x.begin(), x.end()); };
  std::set<std::string> bytes;
  for (const Words& options : {Words{}, Words{"--shards", "128,0,172"}, Words{"--algorithm", "ring"}})
    bytes.insert(out_of(scratch, "in", 3, Words{"--moments", "2"} + options));
  CHECK(bytes.size() == 1);
  out_of(scratch, "in", 3, {"--moments", "2", "--algorithm", "paper"});
  check_near(named("out"), truth.out, 1e-5);
  check_near(named("variance"), doubles(variance), 1e-5);
  check_near(named("entropy"), doubles(entropy), 1e-5);
}

TEST_CASE("emulated: shapes that no kernel takes are refused with their numbers, and nothing is written") {
  const Scratch scratch;
  FileWorkload::draw(1, 1, 1, 1, 10, 8, 577).write(scratch.path("in"), "F32");
  const std::vector<std::pair<Words, std::string>> all{
      {{"--seq-len", "777", "--head-dim", "600"}, "--backend emulated: no kernel supports d_h 600, d_v 600: more than 576"},
      // Moments make a value d_v + d_v + d_h long.
      {{"--seq-len", "777", "--head-dim", "193", "--moments", "2"},
       "--backend emulated: no kernel supports d_h 193, d_v 579: more than 576"},
      {{"in", "out"}, "--backend emulated: no kernel supports d_h 8, d_v 577: more than 576"}};
  std::vector<Words> commands;
  for (const auto& [options, why] : all) {
    commands.push_back(alone(Words{"decode"} + options + Words{"--backend", "emulated"}));
    commands.push_back(ranks(3, Words{"decode"} + options + Words{"--backend", "emulated"}));
  }
  const std::vector<Result> results = run_all(commands, {.folder = scratch.folder().string()});
  for (std::size_t i = 0; i < results.size(); ++i) check_one_line(results[i], all[i / 2].second);
  CHECK(scratch.names() == std::vector<std::string>{"in"});
}
