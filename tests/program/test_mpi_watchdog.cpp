// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks that hang: stopped by a signal at any time, stopped inside MPI; and ranks that only take long.
#include "tests/program/command.hpp"
#include "tests/program/problem.hpp"

#include <map>

namespace {

namespace fs = std::filesystem;

/// A field of /proc/PID/stat: 3 is the state, 4 the parent, 14 the time in user mode in ticks of 10 ms. "" if there is no
/// such process.
std::string stat_field(pid_t process, int field) {
  // Not by a stream, which throws where the process ends while it is read.
  const int file = ::open(("/proc/" + std::to_string(process) + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return "";
  const std::string text = command_detail::read_all(file);
  ::close(file);
  if (text.empty()) return "";
  // The second field may hold spaces; it ends with the last bracket.
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string word;
  for (int i = 3; i <= field; ++i) fields >> word;
  return word;
}

bool is_program(pid_t process) {
  std::error_code error;
  return fs::equivalent("/proc/" + std::to_string(process) + "/exe", kProgram, error) && !error;
}

/// The ranks that mpirun, or a process that it has started, has started, by rank.
std::map<int, pid_t> ranks_of(pid_t mpirun) {
  std::map<int, pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos || !is_program(std::stoi(name))) continue;
    pid_t ancestor = std::stoi(name);
    while (ancestor > 1 && ancestor != mpirun) ancestor = std::atoi(stat_field(ancestor, 4).c_str());
    if (ancestor != mpirun) continue;
    const int file = ::open((entry.path() / "environ").c_str(), O_RDONLY | O_CLOEXEC);
    const std::string environment = '\0' + command_detail::read_all(file);
    ::close(file);
    for (const std::string variable : {"OMPI_COMM_WORLD_RANK=", "PMI_RANK="}) {
      const std::size_t at = environment.find('\0' + variable);
      if (at != std::string::npos) found[std::atoi(environment.c_str() + at + 1 + variable.size())] = std::stoi(name);
    }
  }
  return found;
}

/// Sends a signal to one of three ranks, when all are at work or when the rank has just started.
struct Signal {
  int rank, number;
  bool at_work = true;
  std::map<int, pid_t> processes = {};

  void operator()(pid_t mpirun) {
    constexpr int kTicksAtWork = 30;  // MPI's start takes a few
    for (int i = 0; i < 6000; ++i) {
      processes = ranks_of(mpirun);
      if (processes.count(rank) == 1) {
        if (!at_work) break;
        const std::string ticks = stat_field(processes[rank], 14);
        if (processes.size() == 3 && !ticks.empty() && std::stoi(ticks) > kTicksAtWork) break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(at_work ? 20 : 1));
    }
    REQUIRE(processes.count(rank) == 1);
    ::kill(processes[rank], number);
  }
};

/// Three ranks that would decode for hours.
const Words kLong{"decode", "--seq-len", "4096", "--heads", "4", "--repeat", "1000000", "--timeout", "3"};

/// Whether any of the processes is still there after a moment; one that has ended and was not waited for is not.
bool any_left(const std::map<int, pid_t>& processes) {
  const auto is_there = [](const auto& process) {
    const std::string state = stat_field(process.second, 3);
    return !state.empty() && state != "Z" && state != "X";
  };
  for (int i = 0; i < 100 && std::any_of(processes.begin(), processes.end(), is_there); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return std::any_of(processes.begin(), processes.end(), is_there);
}

/// No shared memory is left of a launcher that is gone: the names are tree_attn-USER-PROCESS-START.
void check_no_memory_left() {
  if (!fs::exists("/dev/shm")) return;
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    int user = 0, process = 0;
    const std::string name = entry.path().filename();
    if (std::sscanf(name.c_str(), "tree_attn-%d-%d-", &user, &process) != 2) continue;
    CHECK_MESSAGE(!stat_field(process, 3).empty(), name);
  }
}

/// Three ranks of which one, or its main thread alone, stops for ever as it calls a function of MPI.
Words stopping(const std::string& call, int rank, const std::string& how, const Words& arguments) {
  return ranks(3, arguments,
               {"env", "LD_PRELOAD=" TREE_ATTN_STOP_IN_MPI, "STOP_IN=" + call, "STOP_RANK=" + std::to_string(rank), "STOP_HOW=" + how, kProgram});
}

}  // namespace

TEST_CASE("watchdog: a rank that is stopped while it decodes ends the job, in one line that names it") {
  for (const int rank : {0, 1, 2}) {
    CAPTURE(rank);
    Signal stop{rank, SIGSTOP};
    const Result result = run(ranks(3, kLong), {.deadline = 45, .meanwhile = [&](pid_t mpirun) { stop(mpirun); }});
    check_one_line(result, "rank " + std::to_string(rank) + " has not answered for 3 s in two-level, step 1");
    CHECK(result.err.find("; --timeout 3\n") != std::string::npos);
    CHECK(!any_left(stop.processes));
  }
  check_no_memory_left();
}

TEST_CASE("watchdog: a rank that is stopped as it starts ends the job, in one line that names it") {
  for (const int rank : {0, 1}) {
    CAPTURE(rank);
    Signal stop{rank, SIGSTOP, false};
    Result result = run(ranks(3, kLong), {.deadline = 45, .meanwhile = [&](pid_t mpirun) { stop(mpirun); }});
    // It has not answered, or not even started: that depends on where it was stopped. What has not started only the launcher
    // can end, and MPICH's has the signal that it took for its status, and writes to standard output.
    if (result.status == SIGKILL && result.err.find(" has not started for ") != std::string::npos) result.status = 2, result.out = "";
    check_one_line(result, "rank " + std::to_string(rank) + " has not ");
    CHECK(!any_left(stop.processes));
  }
  check_no_memory_left();
}

TEST_CASE("watchdog: a rank that is stopped in a call of MPI ends the job, in one line that names both") {
  const Words decode{"decode", "--seq-len", "256", "--timeout", "2"};
  for (const std::string call : {"MPI_Init_thread", "MPI_Comm_split_type", "MPI_Comm_dup", "MPI_Comm_free", "MPI_Finalize"}) {
    CAPTURE(call);
    std::vector<Words> commands;
    for (int rank = 0; rank < 3; ++rank) commands.push_back(stopping(call, rank, "stop", decode));
    std::vector<Result> results = run_all(commands, {.deadline = 45});
    for (int rank = 0; rank < 3; ++rank) {
      Result& result = results[static_cast<std::size_t>(rank)];
      // The end comes after the table.
      if (call == "MPI_Finalize") {
        CHECK(result.out.find("256 keys") != std::string::npos);
        CHECK(result.err.find("after all output was written") != std::string::npos);
        result.out.clear();
      }
      check_one_line(result, "rank " + std::to_string(rank) + " has not answered for 2 s");
      CHECK(result.err.find(", waiting in " + call + " (rank " + (rank == 0 ? "1" : "0") + " waits ") != std::string::npos);
    }
  }
  check_no_memory_left();
}

TEST_CASE("watchdog: ranks that all wait for something that never comes end, and say for what") {
  const Result result = run(stopping("MPI_Comm_free", 1, "wait", {"decode", "--seq-len", "256", "--timeout", "2"}), {.deadline = 45});
  check_one_line(result, "no rank has moved for 2");
  CHECK(result.err.find("ranks 0, 2 wait for the nodes of all ranks in reading the input") != std::string::npos);
  CHECK(result.err.find("rank 1 waits in MPI_Comm_free in reading the input") != std::string::npos);
}

TEST_CASE("watchdog: a rank that computes for longer than --timeout does not hang") {
  constexpr double kTimeout = 1, kLong = 1.5 * kTimeout;
  const auto seconds_of = [](const Words& options, int n_keys) {
    const std::string n = std::to_string(n_keys);
    const auto start = std::chrono::steady_clock::now();
    check_silent_success(run(ranks(2, Words{"decode", "--seq-len", n, "--shards", "0," + n, "--timeout", "1"} + options), {.deadline = 120}));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const double start_and_end = seconds_of({}, 64);
  // A longer sequence, until this machine computes for longer than the timeout.
  const auto computes_long = [&](const Words& options) {
    for (int n_keys = 1 << 16; n_keys < 1 << 20; n_keys *= 2) {
      if (seconds_of(options, n_keys) > start_and_end + kLong) return true;
    }
    return false;
  };
  // The oracle, on rank 0.
  CHECK(computes_long({"--heads", "8", "--dtype", "f32", "--verify"}));
  // A shard of all keys, on rank 1; the emulator takes long.
  CHECK(computes_long({"--heads", "8", "--backend", "emulated"}));
}

TEST_CASE("watchdog: without a deadline, and with --timeout in front of the command") {
  check_silent_success(run(ranks(2, {"--timeout", "inf", "decode", "--seq-len", "256"})));
  // That it counts before the command line is read shows in the line.
  const Words early = stopping("MPI_Init_thread", 1, "stop", {"--timeout=1.5", "info"});
  check_one_line(run(early, {.deadline = 45}), "rank 1 has not answered for 1.5 s");
}

TEST_CASE("watchdog: when a rank is killed, all end, the status tells, and nothing is written") {
  for (const int rank : {0, 2}) {
    CAPTURE(rank);
    const Scratch scratch;
    FileProblem::draw(1, 4, 4, 1, 4096, 128, 128).write(scratch.path("in"), "BF16");
    const Words long_decode{"decode", "in", "out", "--report", "report", "--repeat", "1000000"};
    Signal kill{rank, SIGKILL};
    const Result result = run(ranks(3, long_decode), {.folder = scratch.folder().string(), .deadline = 45, .meanwhile = [&](pid_t mpirun) {
                                                        kill(mpirun);
                                                      }});
    CAPTURE(result.err);
    // mpirun's status is that of the rank that was killed: as a shell gives it, or, MPICH's, the signal itself.
    CHECK((result.status == 128 + SIGKILL || result.status == SIGKILL));
    CHECK(result.out.find(" keys") == std::string::npos);
    CHECK(!any_left(kill.processes));
    CHECK(scratch.names() == Words{"in"});
  }
}
