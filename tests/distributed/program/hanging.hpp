// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks that hang: finds the processes of a job, stops or kills one, and sees what is left of it.
#pragma once

#include "tests/distributed/program/command.hpp"
#include "tests/support/sanitized.hpp"

#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <map>

namespace fs = std::filesystem;

/// A field of /proc/PID/stat: 3 is the state, 4 the parent, 14 the time in user mode in ticks of 10 ms. "" if there is no
/// such process.
inline std::string stat_field(pid_t process, int field) {
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

inline bool is_program(pid_t process) {
  std::error_code error;
  return fs::equivalent("/proc/" + std::to_string(process) + "/exe", kProgram, error) && !error;
}

/// The ranks that mpirun, or a process that it has started, has started, by rank.
inline std::map<int, pid_t> ranks_of(pid_t mpirun) {
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

/// Sends a signal to some of `n_ranks` ranks when all are at work.
struct Signal {
  std::vector<int> ranks;
  int number;
  std::size_t n_ranks = 3;
  std::map<int, pid_t> processes = {};

  void operator()(pid_t mpirun) {
    constexpr int kTicksAtWork = tree_attn::test::kIsSanitized ? 600 : 30;  // MPI's start takes a few
    const int first = ranks[0];
    for (int i = 0; i < 6000; ++i) {
      processes = ranks_of(mpirun);
      const std::string ticks = processes.count(first) == 1 ? stat_field(processes[first], 14) : "";
      if (processes.size() == n_ranks && !ticks.empty() && std::stoi(ticks) > kTicksAtWork) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    REQUIRE(processes.count(first) == 1);
    for (const int rank : ranks) ::kill(processes[rank], number);
  }
};

/// f(item) for every item, all at once: jobs that mostly wait.
template <class Item, class F>
void at_once(const std::vector<Item>& items, const F& f) {
  std::vector<std::future<void>> jobs;
  for (const Item& item : items) jobs.push_back(std::async(std::launch::async, f, std::cref(item)));
  for (auto& job : jobs) job.get();
}

/// A decode that would take hours. Its steps are long: ranks that are stopped "at work" have computed for a while, which
/// short steps on a busy machine would spend waiting for each other.
inline const Words kHours{"decode", "--seq-len", "65536", "--heads", "4", "--repeat", "1000000", "--timeout", "3"};

/// The result without what mpiexec itself does to it.
///
/// MPICH's kills the ranks that are left when it sees the first one end; if it is faster than the last rank, that signal is
/// its status, and it writes about it to standard output. Open MPI's, of version 4.1.4, now and then crashes in its own
/// PMIx_server_finalize() when ranks have exited in MPI_Finalize; by then it has written the status of the first of them.
inline Result without_mpiexec(Result result) {
  const std::size_t banner = result.out.find("\n==========");
  if (result.status == SIGKILL && banner != std::string::npos) {
    result.status = 2;
    result.out.erase(banner);
  }
  constexpr std::string_view kExitCode = "Exit code:";
  const std::size_t code = result.err.find(kExitCode);
  if (result.status == 128 + SIGSEGV && result.err.find("PMIx_server_finalize") != std::string::npos &&
      code != std::string::npos)
    result.status = std::atoi(result.err.c_str() + code + kExitCode.size());
  return result;
}

/// Tells whether any of the processes is still there a moment after mpirun, which ends the ranks that it finds, stopped ones
/// too: it does not tell what the program itself would have left. One that has ended and was not waited for is not there.
inline bool any_left(const std::map<int, pid_t>& processes) {
  const auto is_there = [](const auto& process) {
    const std::string state = stat_field(process.second, 3);
    return !state.empty() && state != "Z" && state != "X";
  };
  for (int i = 0; i < 100 && std::any_of(processes.begin(), processes.end(), is_there); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return std::any_of(processes.begin(), processes.end(), is_there);
}

/// The program with mpi_faults.cpp preloaded, and its variables.
inline Words with_faults(const Words& variables) {
  return Words{"env", "LD_PRELOAD=" TREE_ATTN_MPI_FAULTS} + variables + Words{kProgram};
}

/// Three ranks of which one, or its main thread alone, stops for ever as it calls a function, or for which it fails.
inline Words stopping(const std::string& call, int rank, const std::string& how, const Words& arguments) {
  return ranks(3, arguments, with_faults({"STOP_IN=" + call, "STOP_RANK=" + std::to_string(rank), "STOP_HOW=" + how}));
}
