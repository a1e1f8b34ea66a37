// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The watchdog of a job on two machines, or on four: what is slow lives, what hangs is named, once.
#include "tree_attn/tests/distributed/program/hanging.hpp"

namespace {

/// Four ranks. @param level "serialized" or "funneled", which is then all that MPI grants @param more words for env
Words on_machines(int n_per_machine, const Words& arguments, const std::string& level = "serialized",
                  const Words& more = {}) {
  return ranks(4, arguments,
               Words{"env", "LD_PRELOAD=" TREE_ATTN_MACHINES ":" TREE_ATTN_STOP_IN_MPI, "MPI_LEVEL=" + level,
                     "RANKS_PER_MACHINE=" + std::to_string(n_per_machine)} +
                   more + Words{kProgram});
}

/// Stops these of four ranks when all are at work.
struct Stop {
  std::vector<int> others;
  Signal first;
  explicit Stop(const std::vector<int>& which)
      : others(which.begin() + 1, which.end()), first{.rank = which[0], .number = SIGSTOP, .n_ranks = 4} {}
  void operator()(pid_t mpirun) {
    first(mpirun);
    for (const int rank : others) ::kill(first.processes[rank], SIGSTOP);
  }
};

/// Runs a long decode, stops ranks of it, and returns how it ended.
Result run_and_stop(int n_per_machine, const std::vector<int>& which) {
  Stop stop(which);
  const Result result =
      run(on_machines(n_per_machine, kHours), {.deadline = 45, .meanwhile = [&](pid_t mpirun) { stop(mpirun); }});
  CHECK(!any_left(stop.first.processes));
  return without_mpiexec(result);
}

}  // namespace

TEST_CASE("machines: a rank that computes for long is waited for by the ranks of other machines") {
  // The second machine grants the first 4 s on top of its timeout, and half a second as it polls; and time to spare.
  constexpr double kPatience = 0.5 + 4.5 + 1;
  for (const std::string level : {"serialized", "funneled"}) {
    CAPTURE(level);
    // The oracle, on rank 0.
    CHECK(takes_longer(kPatience, [&](const std::string& n_keys) {
      return on_machines(
          2, {"decode", "--seq-len", n_keys, "--heads", "16", "--dtype", "f32", "--timeout", "0.5", "--verify"}, level);
    }));
  }
}

TEST_CASE("machines: a rank that is stopped is named by its own machine") {
  // Rank 2 is the one that speaks for its machine.
  at_once(std::vector{2, 3}, [](int rank) {
    CAPTURE(rank);
    check_one_line(run_and_stop(2, {rank}), "rank " + std::to_string(rank) + " has not answered for 3 s (rank " +
                                                std::to_string(5 - rank) + " waits ");
  });
}

TEST_CASE("machines: ranks whose whole machine is stopped are named by another, a little later") {
  struct Case {
    int n_per_machine;
    std::vector<int> ranks;
    std::string line;
  };
  // The lowest stands for all ranks of the other machine.
  const std::vector<Case> cases{{2, {2, 3}, "rank 2 has not answered for 3 s (rank "},
                                {2, {0, 1}, "rank 0 has not answered for 3 s (rank "},
                                {1, {1}, "rank 1 has not answered for 3 s (rank 0 waits "}};
  at_once(cases, [](const Case& c) { check_one_line(run_and_stop(c.n_per_machine, c.ranks), c.line); });
}

TEST_CASE("machines: ranks that all wait, on all machines, end, and one says for what") {
  const auto waiting_in = [](const std::string& call) {
    const Words waits{"STOP_IN=" + call, "STOP_RANK=3", "STOP_HOW=wait"};
    return without_mpiexec(
        run(on_machines(2, {"decode", "--seq-len", "256", "--timeout", "1"}, "serialized", waits), {.deadline = 45}));
  };
  check_one_line(waiting_in("MPI_Comm_free"), "no rank has made progress for 3 s (rank ");
  // No main thread is free to speak to another machine.
  check_one_line(waiting_in("MPI_Comm_split_type"), " waits in MPI_Comm_split_type while reading the input)");
}

TEST_CASE("machines: a rank that is stopped at the end of MPI is named by its own machine") {
  const Words stops{"STOP_IN=MPI_Finalize", "STOP_RANK=3", "STOP_HOW=stop"};
  Result result = without_mpiexec(
      run(on_machines(2, {"decode", "--seq-len", "256", "--timeout", "1"}, "serialized", stops), {.deadline = 45}));
  CHECK(result.out.find("256 keys") != std::string::npos);
  result.out.clear();
  check_one_line(result, "rank 3 has not answered for 1 s (rank 2 waits in MPI_Finalize after all output was written)");
}

TEST_CASE("machines: a job ends well, every time") {
  std::vector<Words> commands;
  for (int i = 0; i < 20; ++i) {
    commands.push_back(
        on_machines(1 + i % 3, {"decode", "--seq-len", "256", "--timeout", "20"}, i % 2 == 0 ? "serialized" : "funneled"));
  }
  for (const Result& result : run_all(commands)) check_silent_success(result);
}
