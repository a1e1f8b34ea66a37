// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks that hang: stopped by a signal at any time, stopped inside MPI; and ranks that only take long.
#include "tree_attn/tests/distributed/program/file_workload.hpp"
#include "tree_attn/tests/distributed/program/hanging.hpp"

#include <sys/stat.h>

TEST_CASE("watchdog: a rank that is stopped while it decodes ends the job, in one line that names it") {
  at_once(std::vector{0, 2}, [](int rank) {
    CAPTURE(rank);
    Signal stop{{rank}, SIGSTOP};
    const Result result = run(ranks(3, kHours), {.deadline = 45, .meanwhile = [&](pid_t mpirun) { stop(mpirun); }});
    check_one_line(without_mpiexec(result), "rank " + std::to_string(rank) + " has not answered for 3 s (rank ");
    CHECK(result.err.find(" in two-level, step 1); --timeout 3 s\n") != std::string::npos);
    CHECK(!any_left(stop.processes));
  });
}

TEST_CASE("watchdog: a call of MPI in which a rank is stopped, waits for ever or fails ends the job, in one line") {
  std::vector<Ending> all;
  const auto add = [&](const std::string& call, int rank, const std::string& how, const std::string& line) {
    all.push_back({stopping(call, rank, how, {"decode", "--seq-len", "256", "--timeout", "3"}), line});
  };
  for (const std::string call : {"MPI_Comm_split_type", "MPI_Comm_free"})
    for (const int rank : {0, 2})
      add(call, rank, "stop", "rank " + std::to_string(rank) + " has not answered for 3 s (rank ");
  // Ranks that all wait: the one that blocks says for what.
  add("MPI_Comm_free", 1, "wait",
      "no rank has made progress for 3 s (rank 1 waits in MPI_Comm_free while reading the input)");
  // The first as the watchdog starts, the second as MPI does, the third in a command.
  add("pthread_create", 1, "fail", "tree_attn: rank 1: the system started no thread for the watchdog");
  add("MPI_Comm_idup", 1, "fail", "tree_attn: rank 1: MPI_Comm_idup failed: ");
  add("MPI_Comm_split_type", 1, "fail", "tree_attn: rank 1: MPI_Comm_split_type failed: ");
  at_once(all, [](const Ending& each) { check_one_line(without_mpiexec(run(each.command, {.deadline = 45})), each.line); });
}

TEST_CASE("watchdog: ranks that wait in a call of MPI before they know each other end after 30 s, in one line") {
  std::vector<Words> commands;
  for (const std::string call : {"MPI_Init_thread", "MPI_Comm_idup"})
    for (int rank = 0; rank < 2; ++rank) commands.push_back(stopping(call, rank, "stop", {"info", "--timeout", "2"}));
  const std::vector<Result> results = run_all(commands, {.deadline = 90});
  for (std::size_t i = 0; i < results.size(); ++i) {
    CAPTURE(i);
    // The lowest rank that is not stopped says so.
    check_one_line(without_mpiexec(results[i]), i % 2 == 0 ? "no rank has made progress for 32 s (rank 1 waits "
                                                           : "no rank has made progress for 30 s (rank 0 waits ");
  }
}

/// What it does between waits is computing: here it writes for two seconds.
TEST_CASE("watchdog: a rank that computes for longer than --timeout does not hang") {
  const Scratch scratch;
  check_silent_success(
      run(stopping("fsync", 0, "2", {"decode", "--seq-len", "256", "--report", scratch.path("report"), "--timeout", "1"})));
}

TEST_CASE("watchdog: without a deadline, and with --timeout in front of the command") {
  check_silent_success(run(ranks(2, {"--timeout", "inf", "decode", "--seq-len", "256"})));
  const Words early = stopping("MPI_Finalize", 1, "stop", {"--timeout=1.5", "info"});
  CHECK(run(early, {.deadline = 45}).err.find("rank 1 has not answered for 1.5 s") != std::string::npos);
}

TEST_CASE("watchdog: a job that ends while rank 0 writes its files leaves OUT as it was") {
  at_once(std::vector{SIGSTOP, SIGKILL, SIGTERM}, [&](int number) {
    CAPTURE(number);
    const Scratch scratch;
    const std::string out = scratch.write("out", "as it was");
    FileWorkload::draw(1, 4, 4, 1, 64, 128, 128).write(scratch.path("in"), "BF16");
    // The table waits for the reader of a full pipe, after OUT.
    const std::string pipe = scratch.path("table");
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    const int reader = ::open(pipe.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
    while (::write(reader, "x", 1) == 1) continue;
    const auto is_temporary = [&](const std::string& name) { return name.starts_with("out."); };
    std::map<int, pid_t> processes;
    // Rank 0 itself is terminated; another rank is killed, or stopped until the watchdogs end the job.
    const auto end_job = [&](pid_t mpirun) {
      std::vector<std::string> names;
      for (int i = 0; i < 1500 && std::none_of(names.begin(), names.end(), is_temporary); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        names = scratch.names();
      }
      CHECK(std::any_of(names.begin(), names.end(), is_temporary));
      processes = ranks_of(mpirun);
      REQUIRE(processes.size() == 2);
      ::kill(processes[number == SIGTERM ? 0 : 1], number);
    };
    const Words to_pipe{"sh", "-c", "exec \"$0\" \"$@\" >table", kProgram};
    const Result result = run(ranks(2, {"decode", "in", "out", "--timeout", "2"}, to_pipe),
                              {.folder = scratch.folder().string(), .deadline = 45, .meanwhile = end_job});
    ::close(reader);
    if (number == SIGSTOP) check_one_line(without_mpiexec(result), "rank 1 has not answered for 2 s");
    CHECK(result.status != 0);
    CHECK(!any_left(processes));
    CHECK(Scratch::read(out) == "as it was");
  });
}
