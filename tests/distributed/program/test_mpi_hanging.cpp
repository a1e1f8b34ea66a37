// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks that hang: stopped by a signal at any time, stopped inside MPI; and ranks that only take long.
#include "tests/distributed/program/file_workload.hpp"
#include "tests/distributed/program/hanging.hpp"

#include <sys/stat.h>

namespace {

const std::string kLonger = " and gave up; if a rank computes for longer, it needs a longer --timeout";

}  // namespace

TEST_CASE("hanging: a rank that is stopped while it decodes ends the job, in one line") {
  at_once(std::vector{0, 2}, [](int rank) {
    CAPTURE(rank);
    Signal stop{{rank}, SIGSTOP};
    const Result result = run(ranks(3, kHours), {.deadline = 45, .meanwhile = [&](pid_t mpirun) { stop(mpirun); }});
    // The lowest rank that waits speaks. It waits for the other, or for one that waits for the other, by where that was
    // stopped.
    const Result ended = without_mpiexec(result);
    check_one_line(ended, "rank " + std::to_string(rank == 0 ? 1 : 0) + " waited 3 s for ");
    check_one_line(ended, " in two-level, step 1" + kLonger);
    CHECK((ended.err.find(" for a message ") != std::string::npos ||
           ended.err.find(" for all ranks to ") != std::string::npos));
    CHECK(!any_left(stop.processes));
  });
}

TEST_CASE("hanging: a call of MPI in which a rank is stopped, waits for ever or fails ends the job, in one line") {
  std::vector<Ending> all;
  const auto add = [&](const std::string& call, int rank, const std::string& how, const std::string& line) {
    all.push_back({stopping(call, rank, how, {"decode", "--seq-len", "256", "--timeout", "3"}), line});
  };
  const std::string in_split = " has been in MPI_Comm_split_type for 3 s while reading the input";
  add("MPI_Comm_split_type", 0, "stop", "rank 1" + in_split);
  add("MPI_Comm_split_type", 2, "stop", "rank 0" + in_split);
  add("MPI_Comm_split_type", 1, "wait", "rank 0" + in_split);
  const std::string nodes = " waited 3 s for the nodes of all ranks while reading the input" + kLonger;
  add("MPI_Comm_free", 0, "stop", "rank 1" + nodes);
  add("MPI_Comm_free", 1, "wait", "rank 0" + nodes);
  // The first as MPI starts, the second in a command.
  add("MPI_Comm_idup", 1, "fail", "tree_attn: rank 1: MPI_Comm_idup failed: ");
  add("MPI_Comm_split_type", 1, "fail", "tree_attn: rank 1: MPI_Comm_split_type failed: ");
  at_once(all, [](const Ending& each) { check_one_line(without_mpiexec(run(each.command, {.deadline = 45})), each.line); });
}

TEST_CASE("hanging: ranks that wait for the start or the end of MPI end after 30 s, in one line") {
  const std::vector<Result> results =
      run_all({stopping("MPI_Init_thread", 0, "stop", {"info", "--timeout", "2"}),
               stopping("MPI_Init_thread", 1, "stop", {"info", "--timeout", "2"}),
               stopping("MPI_Finalize", 1, "stop", {"--timeout=1.5", "decode", "--seq-len", "256"})},
              {.deadline = 90});
  check_one_line(without_mpiexec(results[0]), "rank 1 has been in MPI_Init_thread for 30 s");
  check_one_line(without_mpiexec(results[1]), "rank 0 has been in MPI_Init_thread for 30 s");
  CHECK(results[2].out.find("256 keys") != std::string::npos);
  Result last = without_mpiexec(results[2]);
  last.out.clear();
  check_one_line(last, "rank 0 has been in MPI_Finalize for 30 s after all output was written");
}

/// Time between waits counts as computing: here the rank writes for some seconds.
TEST_CASE("hanging: a rank that computes for longer than --timeout needs a longer one, and the line says so") {
  const Scratch scratch;
  const auto writing = [&](const std::string& seconds, const std::string& timeout) {
    return stopping("fsync", 0, seconds,
                    {"decode", "--seq-len", "256", "--report", scratch.path("report"), "--timeout", timeout});
  };
  const Result result = run(writing("20", "1"));
  check_one_line(without_mpiexec(result), "rank 1 waited 1 s for all ranks to agree while writing the results" + kLonger);
  CHECK(!fs::exists(scratch.path("report")));
  check_silent_success(run(writing("2", "20")));
  check_silent_success(run(ranks(2, {"--timeout", "inf", "decode", "--seq-len", "256"})));
}

TEST_CASE("hanging: a job that ends while rank 0 writes its files leaves OUT as it was") {
  at_once(std::vector{SIGKILL, SIGTERM}, [&](int number) {
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
    // Rank 0 itself is terminated; another rank is killed.
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
    CHECK(result.status != 0);
    CHECK(!any_left(processes));
    CHECK(Scratch::read(out) == "as it was");
  });
}
