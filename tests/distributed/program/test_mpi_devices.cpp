// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn decode --devices`: ranks that are threads of one process compute and count what processes do.
#include "tree_attn/tests/distributed/program/command.hpp"
#include "tree_attn/tests/distributed/program/file_workload.hpp"
#include "tree_attn/tests/support/algorithm_names.hpp"

#include <nlohmann/json.hpp>

namespace {

/// The runs of a report, without times.
nlohmann::json runs_of(const std::string& path) {
  nlohmann::json runs = nlohmann::json::parse(Scratch::read(path))["runs"];
  for (nlohmann::json& run : runs) {
    CHECK(run["same_bits_on_all_ranks"] == true);
    for (const char* of_the_clock : {"latency_us", "combine_us"}) run.erase(of_the_clock);
  }
  return runs;
}

}  // namespace

TEST_CASE("decode --devices: output, counts and predictions are those of processes under mpirun") {
  const Scratch scratch;
  FileWorkload workload = FileWorkload::draw(3, 4, 2, 2, 1000, 16, 24);
  workload.lengths = {1000, 0, 437};
  workload.write(scratch.path("in"), "BF16");
  const Words file{"decode", scratch.path("in"), scratch.path("out"), "--threads", "1", "--report", scratch.path("report")},
      growing{"decode",  "--seq-len", "300",       "--heads", "4",        "--head-dim",          "16",
              "--steps", "20",        "--threads", "1",       "--report", scratch.path("report")};
  struct Job {
    int n_ranks;
    std::string devices;
    Words arguments;
  };
  for (const Job& job :
       {Job{5, "0,7,3-5", file + Words{"--shards", "0,64,512,0,424", "--ranks-per-node", "3"}}, Job{3, "0-2", growing}}) {
    CAPTURE(job.devices);
    const Words arguments = job.arguments + Words{"--compare", tree_attn::test::others()};
    check_silent_success(run(ranks(job.n_ranks, arguments)));
    nlohmann::json processes = runs_of(scratch.path("report"));
    const std::string out = job.arguments[1] == scratch.path("in") ? Scratch::read(scratch.path("out")) : "";
    check_silent_success(run(alone(arguments + Words{"--devices", job.devices})));
    const nlohmann::json threads = runs_of(scratch.path("report"));
    REQUIRE(threads.size() == tree_attn::algorithms().size());
    REQUIRE(processes.size() == threads.size());
    CHECK(threads[0]["ranks"] == job.n_ranks);
    for (std::size_t i = 0; i < processes.size(); ++i) {
      CHECK(processes[i]["transport"] == "mpi");
      processes[i]["transport"] = "threads";
    }
    CHECK(threads == processes);
    if (!out.empty()) CHECK((Scratch::read(scratch.path("out")) == out));
  }
}

/// @tested{alg_3, Alg. 3}
TEST_CASE("decode --devices: one-shot has the bits of gather, under mpirun too, and counts as predicted") {
  const Scratch scratch;
  const Words common = "decode --backend emulated --algorithm one-shot --compare gather --head-dim 32 --heads 4"_words +
                       Words{"--verify", "--report", scratch.path("report")};
  // 0 ranks: threads of one process.
  for (const auto& [n_ranks, more] :
       {std::pair(0, "--devices 0-3 --seq-len 900 --steps 3"_words),
        std::pair(0, "--devices 5,3,9 --seq-len 777 --kv-heads 1 --shards 64,0,713"_words),
        std::pair(
            0, "--devices 0-4 --ranks-per-node 2 --seq-len 777 --kv-heads 1 --radix 3 --order contiguous --steps 3"_words),
        std::pair(3, "--seq-len 900 --steps 3"_words), std::pair(2, "--seq-len 900 --steps 3 --windows host"_words),
        std::pair(4, "--seq-len 900 --steps 3 --ranks-per-node 2 --kv-heads 1 --order contiguous"_words),
        std::pair(3, "--seq-len 900 --steps 3 --ranks-per-node 2 --transport shared --dtype bf16"_words)}) {
    check_silent_success(run(n_ranks == 0 ? alone(common + more) : ranks(n_ranks, common + more)));
    const nlohmann::json runs = runs_of(scratch.path("report"));
    REQUIRE(runs.size() == 2);
    CHECK(runs[0]["algorithm"] == "one-shot");
    CHECK(runs[0]["output_digest"] == runs[1]["output_digest"]);
    for (const char* count : {"messages_per_step", "bytes_per_step", "bytes_between_nodes_per_step", "merge_steps"})
      CHECK(runs[0][count] == runs[0]["predicted"][count]);
    // Every rank merges all subtrees; on several nodes, those of its node and what the others have left of theirs.
    if (runs[0]["nodes"] == 1)
      CHECK(runs[0]["merge_steps"] == runs[1]["merge_steps"]);
    else
      CHECK(runs[0]["merge_steps"] <= runs[1]["merge_steps"]);
  }
}

TEST_CASE("decode --devices: a batch of nothing merges nothing, counted and predicted, also where its sequence grows") {
  const Scratch scratch;
  const Words shape{"--batch",   "0",  "--heads", "1", "--head-dim", "3",
                    "--seq-len", "72", "--steps", "8", "--order",    "contiguous"},
      runs{"--algorithm", "two-level", "--compare", "gather,ring,leaders,one-shot", "--report", scratch.path("report")};
  check_silent_success(run(alone(Words{"decode", "--devices", "0-4", "--backend", "emulated"} + shape + runs)));
  for (const nlohmann::json& run : runs_of(scratch.path("report"))) {
    CAPTURE(run["algorithm"]);
    CHECK(run["merge_steps"] == 0);
    CHECK(run["predicted"]["merge_steps"] == 0);
  }
}

TEST_CASE("decode --devices: ranks that are threads have no launcher, and as many devices as a process may have") {
  check_one_line(run(ranks(2, {"decode", "--seq-len", "64", "--devices", "0-3"})), "the ranks are threads of one process");
  check_silent_success(run(alone({"info", "--devices", "1000-1255"})));
}
