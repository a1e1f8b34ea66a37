// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The watchdog of a job on two machines, or on four: what is slow lives, what hangs is named, once.
#include "tree_attn/tests/distributed/program/hanging.hpp"

namespace {

/// Four ranks. @param level "multiple" or "funneled", which is then all that MPI grants @param more words for env
Words on_machines(int n_per_machine, const Words& arguments, const std::string& level = "multiple", const Words& more = {}) {
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
  // What a machine grants another on top of its timeout, and time to spare.
  constexpr double kPatience = 0.5 + 2 + 1;
  for (const std::string level : {"multiple", "funneled"}) {
    CAPTURE(level);
    // The oracle, on rank 0.
    CHECK(takes_longer(kPatience, [&](const std::string& n_keys) {
      return on_machines(
          2, {"decode", "--seq-len", n_keys, "--heads", "16", "--dtype", "f32", "--timeout", "0.5", "--verify"}, level);
    }));
  }
}

TEST_CASE("machines: a rank that is stopped is named by its own machine") {
  // Rank 2 is the one that sends the pulses of its machine.
  at_once(std::vector{2, 3}, [](int rank) {
    CAPTURE(rank);
    check_one_line(run_and_stop(2, {rank}),
                   "rank " + std::to_string(rank) + " has not answered for 3 s in two-level, step 1");
  });
  check_no_memory_left();
}

TEST_CASE("machines: ranks whose whole machine is stopped are named by another, a little later") {
  struct Case {
    int n_per_machine;
    std::vector<int> ranks;
    std::string line;
  };
  const std::vector<Case> cases{{2, {2, 3}, "ranks 2, 3 have not answered"},
                                {2, {0, 1}, "ranks 0, 1 have not answered"},
                                {1, {1}, "rank 1 has not answered"}};
  at_once(cases, [](const Case& c) {
    check_one_line(run_and_stop(c.n_per_machine, c.ranks), c.line + " for 3 s in two-level, step 1");
  });
  check_no_memory_left();
}

TEST_CASE("machines: ranks that all wait, on all machines, end, and say for what") {
  const auto waiting_in = [](const std::string& call, const std::string& level) {
    const Words waits{"STOP_IN=" + call, "STOP_RANK=3", "STOP_HOW=wait"};
    return without_mpiexec(
        run(on_machines(2, {"decode", "--seq-len", "256", "--timeout", "1"}, level, waits), {.deadline = 45}));
  };
  at_once(std::vector<std::string>{"multiple", "funneled"}, [&](const std::string& level) {
    CAPTURE(level);
    const Result result = waiting_in("MPI_Comm_free", level);
    check_one_line(result, "no rank has made progress for 3");
    CHECK(result.err.find("ranks 0, 1, 2 wait for the nodes of all ranks while reading the input") != std::string::npos);
    CHECK(result.err.find("rank 3 waits in MPI_Comm_free while reading the input") != std::string::npos);
  });
  // Only the watchdog's thread is free to send pulses.
  check_one_line(waiting_in("MPI_Comm_split_type", "multiple"),
                 ": ranks 0, 1, 2, 3 wait in MPI_Comm_split_type while reading the input");
}

TEST_CASE("machines: a rank that is stopped at the end of MPI is named by its own machine") {
  const Words stops{"STOP_IN=MPI_Finalize", "STOP_RANK=3", "STOP_HOW=stop"};
  Result result = without_mpiexec(
      run(on_machines(2, {"decode", "--seq-len", "256", "--timeout", "1"}, "multiple", stops), {.deadline = 45}));
  CHECK(result.out.find("256 keys") != std::string::npos);
  result.out.clear();
  check_one_line(result, "rank 3 has not answered for 1 s after all output was written, waiting in MPI_Finalize");
}

TEST_CASE("machines: a job ends well, every time") {
  std::vector<Words> commands;
  for (int i = 0; i < 20; ++i) {
    commands.push_back(
        on_machines(1 + i % 3, {"decode", "--seq-len", "256", "--timeout", "20"}, i % 2 == 0 ? "multiple" : "funneled"));
  }
  for (const Result& result : run_all(commands)) check_silent_success(result);
  check_no_memory_left();
}
