// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn decode --devices`: ranks that are threads of one process compute and count what processes do.
#include "distributed/decoders/decoder.hpp"
#include "tests/distributed/program/command.hpp"
#include "tests/distributed/program/file_workload.hpp"

#include <nlohmann/json.hpp>

namespace {

/// All algorithms, as --algorithm and --compare take them.
Words all_algorithms() {
  std::string first, rest;
  for (const tree_attn::Algorithm& algorithm : tree_attn::algorithms()) {
    if (first.empty())
      first = algorithm.name;
    else
      rest += (rest.empty() ? "" : ",") + std::string(algorithm.name);
  }
  return {"--algorithm", first, "--compare", rest};
}

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
  for (const Job& job : {Job{1, "5", file}, Job{3, "0-2", file + Words{"--shards", "64,896,40", "--ranks-per-node", "2"}},
                         Job{5, "0,7,3-5", file + Words{"--shards", "0,64,512,0,424", "--ranks-per-node", "3"}},
                         Job{5, "0-4", growing}, Job{2, "0-1", growing + Words{"--order", "contiguous"}}}) {
    CAPTURE(job.devices);
    const Words arguments = job.arguments + all_algorithms();
    check_silent_success(run(ranks(job.n_ranks, arguments)));
    nlohmann::json processes = runs_of(scratch.path("report"));
    const std::string out = job.arguments[1] == scratch.path("in") ? Scratch::read(scratch.path("out")) : "";
    check_silent_success(run(alone(arguments + Words{"--devices", job.devices})));
    const nlohmann::json threads = runs_of(scratch.path("report"));
    REQUIRE(threads.size() == tree_attn::algorithms().size());
    CHECK(threads[0]["ranks"] == job.n_ranks);
    for (nlohmann::json& run : processes) {
      CHECK(run["transport"] == "mpi");
      run["transport"] = "threads";
    }
    CHECK(threads == processes);
    if (!out.empty()) CHECK((Scratch::read(scratch.path("out")) == out));
  }
}

TEST_CASE("decode --devices: emulated devices of one process compute the bits of processes") {
  const Scratch scratch;
  const Words arguments{
      "decode",    "--seq-len", "200",       "--heads",    "4",        "--head-dim",           "64",      "--kv-heads", "2",
      "--backend", "emulated",  "--compare", "ring,paper", "--report", scratch.path("report"), "--verify"};
  check_silent_success(run(ranks(3, arguments)));
  const nlohmann::json processes = runs_of(scratch.path("report"));
  check_silent_success(run(alone(arguments + Words{"--devices", "0-2"})));
  const nlohmann::json threads = runs_of(scratch.path("report"));
  for (std::size_t i = 0; i < processes.size(); ++i) CHECK(threads.at(i)["output_digest"] == processes[i]["output_digest"]);
}

TEST_CASE("decode --devices: an error of any rank ends the process with one line, and processes are refused") {
  const Scratch scratch;
  FileWorkload::draw(1, 2, 2, 1, 64, 8, 8).write(scratch.path("in"), "F32");
  const Words in{"decode", scratch.path("in"), scratch.path("out"), "--devices", "0-3"};
  check_one_line(run(alone(in + Words{"--shards", "64,0"})), "--shards lists 2 shards for 4 ranks");
  check_one_line(run(alone(in + Words{"--expect", "none"})), "none");
  check_one_line(run(alone({"decode", scratch.path("missing"), "--devices", "0-3"})), "missing");
  check_one_line(run(ranks(2, in)), "the ranks are threads of one process");
  for (const char* list : {"", "x", "0-", "3-1", "0,0", "0-2,1", "0;1", ",1", "0,", "-1", "4096", "0-99999999999"}) {
    CAPTURE(list);
    check_one_line(run(alone({"decode", "--seq-len", "64", "--devices", list})), "--devices: \"" + std::string(list) + "\"");
  }
}
