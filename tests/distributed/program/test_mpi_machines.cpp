// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The watchdog of a job on two machines, or on four: what is slow lives, what hangs is named, once.
#include "tree_attn/tests/distributed/program/hanging.hpp"

namespace {

/// Four ranks. @param level "serialized" or "funneled", which is then all that MPI grants @param more variables
Words on_machines(int n_per_machine, const Words& arguments, const std::string& level = "serialized",
                  const Words& more = {}) {
  return ranks(4, arguments,
               with_faults(Words{"MPI_LEVEL=" + level, "RANKS_PER_MACHINE=" + std::to_string(n_per_machine)} + more));
}

/// Runs a long decode, stops ranks of it, and returns how it ended.
Result run_and_stop(int n_per_machine, const std::vector<int>& which) {
  Signal stop{which, SIGSTOP, 4};
  const Result result =
      run(on_machines(n_per_machine, kHours), {.deadline = 45, .meanwhile = [&](pid_t mpirun) { stop(mpirun); }});
  CHECK(!any_left(stop.processes));
  return without_mpiexec(result);
}

}  // namespace

TEST_CASE("machines: a rank that computes for long is waited for by the ranks of other machines") {
  // The second machine grants the first 4 s on top of its timeout, and half a second as it polls: rank 0 writes for longer.
  const Scratch scratch;
  std::vector<Ending> all;
  for (const std::string level : {"serialized", "funneled"})
    all.push_back({on_machines(2, {"decode", "--seq-len", "256", "--report", scratch.path(level), "--timeout", "0.5"}, level,
                               {"STOP_IN=fsync", "STOP_RANK=0", "STOP_HOW=6"}),
                   ""});
  // Machines of one rank, and of different numbers, end well too.
  for (const int n_per_machine : {1, 3})
    all.push_back({on_machines(n_per_machine, {"decode", "--seq-len", "256", "--timeout", "20"}), ""});
  check_endings(all);
}

TEST_CASE("machines: a rank that is stopped is named by its own machine, and a whole machine by another, a little later") {
  struct Case {
    int n_per_machine;
    std::vector<int> ranks;
    std::string line;
  };
  // Rank 2 speaks for its machine, and stands for all ranks of it.
  const std::vector<Case> cases{{2, {2}, "rank 2 has not answered for 3 s (rank 3 waits "},
                                {2, {2, 3}, "rank 2 has not answered for 3 s (rank "},
                                {1, {1}, "rank 1 has not answered for 3 s (rank 0 waits "}};
  at_once(cases, [](const Case& c) { check_one_line(run_and_stop(c.n_per_machine, c.ranks), c.line); });
}

TEST_CASE("machines: ranks that all wait, and one that is stopped at the end of MPI, are named in one line") {
  const Words decode{"decode", "--seq-len", "256", "--timeout", "1"};
  const auto in = [&](const std::string& call, const std::string& how) {
    return on_machines(2, decode, "serialized", {"STOP_IN=" + call, "STOP_RANK=3", "STOP_HOW=" + how});
  };
  std::vector<Result> results = run_all(
      {in("MPI_Comm_free", "wait"), in("MPI_Comm_split_type", "wait"), in("MPI_Finalize", "stop")}, {.deadline = 45});
  for (Result& result : results) result = without_mpiexec(result);
  check_one_line(results[0], "no rank has made progress for 3 s (rank ");
  // The first machine speaks before the other.
  CHECK((results[0].err.find("(rank 0 ") != std::string::npos || results[0].err.find("(rank 1 ") != std::string::npos));
  // No main thread is free to speak to another machine.
  check_one_line(results[1], " waits in MPI_Comm_split_type while reading the input)");
  CHECK(results[2].out.find("256 keys") != std::string::npos);
  results[2].out.clear();
  check_one_line(results[2], "rank 3 has not answered for 1 s (rank 2 waits in MPI_Finalize after all output was written)");
}
