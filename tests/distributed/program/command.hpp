// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Runs the program as its users do, alone and under mpirun, and never waits for it longer than it may take.
#pragma once

#include "tests/support/tensor_files.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

inline const std::string kProgram = TREE_ATTN_PROGRAM;
inline const std::string kLayer = TREE_ATTN_TEST_DATA "/minilm/attention.safetensors";
/// Line about this file where --expect does not name its last tensor.
inline const std::string kLayerIgnored = "tree_attn: " + kLayer + ": ignored: expected";

using Words = std::vector<std::string>;

inline Words operator+(Words left, const Words& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

/// The words of a text, between blanks.
inline Words operator""_words(const char* text, std::size_t n) {
  std::istringstream words(std::string(text, n));
  return {std::istream_iterator<std::string>(words), {}};
}

/// Result of a command.
struct Result {
  int status = -1;  ///< of exit(); 128 + the signal that ended it; -1 past the deadline
  std::string out, err;
  long peak_kib = 0;  ///< largest resident set of any of its processes
};

/// Environment of a command.
struct Around {
  std::string folder = ".";                   ///< to run in
  int deadline = 60;                          ///< seconds after `meanwhile`, when its processes are killed
  bool err_is_terminal = false;               ///< standard error is a terminal, not a file
  std::function<void(pid_t)> meanwhile = {};  ///< is called with the process once it runs
};

namespace command_detail {

inline std::string read_all(int descriptor) {
  std::string text;
  char piece[4096];
  for (ssize_t n = 0; (n = ::read(descriptor, piece, sizeof piece)) > 0;) text.append(piece, static_cast<std::size_t>(n));
  return text;
}

/// The child's side of run(): only calls that are safe between fork and exec.
[[noreturn]] inline void become(char* const* words, const Around& around, int out, int err) {
  ::setpgid(0, 0);
  if (::chdir(around.folder.c_str()) != 0) ::_exit(126);
  ::signal(SIGXFSZ, SIG_DFL);  // it ends a program that does not ignore it
  ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  ::execvp(words[0], words);
  ::_exit(127);
}

}  // namespace command_detail

/// Runs a command to its end, in a process group of its own.
inline Result run(const Words& words, const Around& around = {}) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);

  // Output goes to files in memory: nobody has to read while the command runs.
  const int out = ::memfd_create("out", MFD_CLOEXEC);
  int err = ::memfd_create("err", MFD_CLOEXEC), terminal = -1;
  if (around.err_is_terminal) {
    terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    ::grantpt(terminal);
    ::unlockpt(terminal);
    ::dup3(::open(::ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC), err, O_CLOEXEC);
  }
  const pid_t child = ::fork();
  if (child == 0) command_detail::become(pointers.data(), around, out, err);
  ::setpgid(child, child);
  // Wait; past the deadline ask first, so that mpirun can end its ranks.
  Result result;
  int status = 0;
  rusage used{};
  auto start = std::chrono::steady_clock::now();
  const auto wait_until = [&](std::chrono::seconds end) {
    while (::wait4(child, &status, WNOHANG, &used) == 0) {
      if (std::chrono::steady_clock::now() - start > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  };
  const auto end_it = [&] {
    ::kill(-child, SIGTERM);
    const auto waited = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - start);
    if (!wait_until(waited + std::chrono::seconds(5))) {
      ::kill(-child, SIGKILL);
      ::wait4(child, &status, 0, &used);
    }
  };
  try {
    if (around.meanwhile) around.meanwhile(child);
    // Until then it had to get to work, which takes long on a machine with other work.
    start = std::chrono::steady_clock::now();
  } catch (...) {
    end_it();  // a check that failed must not leave ranks behind
    throw;
  }
  if (wait_until(std::chrono::seconds(around.deadline))) {
    result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  } else {
    end_it();
  }
  result.peak_kib = used.ru_maxrss;

  ::lseek(out, 0, SEEK_SET);
  ::lseek(err, 0, SEEK_SET);
  result.out = command_detail::read_all(out);
  if (around.err_is_terminal) ::fcntl(terminal, F_SETFL, O_NONBLOCK);
  result.err = command_detail::read_all(around.err_is_terminal ? terminal : err);
  for (const int descriptor : {out, err, terminal}) {
    if (descriptor >= 0) ::close(descriptor);
  }
  return result;
}

/// The program without mpirun.
inline Words alone(const Words& arguments) { return Words{kProgram} + arguments; }

/// The program run by a shell. @param script what the shell does with the command "$0" "$@"
inline Words by_shell(const std::string& script, const Words& arguments) {
  return Words{"sh", "-c", script, kProgram} + arguments;
}
/// @param redirection ">&-"
inline Words redirected(const std::string& redirection, const Words& arguments) {
  return by_shell("exec \"$0\" \"$@\" " + redirection, arguments);
}

/// The program under mpirun; with one rank too, it is started by mpirun.
inline Words ranks(int n, const Words& arguments, const Words& program = {kProgram}) {
  // As root Open MPI starts nothing without being told twice that this is meant.
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  Words flags{TREE_ATTN_MPIEXEC_FLAGS};
  std::erase(flags, "");
  return Words{TREE_ATTN_MPIEXEC} + flags + Words{"-n", std::to_string(n)} + program + arguments;
}

/// As on several machines: the program, run in a folder of its own on every rank, named by the rank's number.
inline Words in_own_folder(const std::string& folder) {
  return {"sh", "-c", "cd \"$0/${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\" && exec \"$@\"", folder, kProgram};
}

/// The program under mpirun with arguments of its own for every rank.
inline Words each_its_own(const std::vector<Words>& arguments) {
  Words command = ranks(1, arguments[0]);
  for (std::size_t rank = 1; rank < arguments.size(); ++rank)
    command = command + Words{":", "-n", "1", kProgram} + arguments[rank];
  return command;
}

/// Many commands, some at a time: what takes long is MPI's start, and that is mostly waiting.
inline std::vector<Result> run_all(const std::vector<Words>& commands, const Around& around = {}) {
  constexpr std::size_t kAtOnce = 8;
  std::vector<Result> results(commands.size());
  std::atomic<std::size_t> next = 0;
  std::vector<std::future<void>> workers;
  for (std::size_t i = 0; i < kAtOnce; ++i) {
    workers.push_back(std::async(std::launch::async, [&] {
      for (std::size_t mine = next++; mine < commands.size(); mine = next++) results[mine] = run(commands[mine], around);
    }));
  }
  for (auto& worker : workers) worker.get();
  return results;
}

/// Lines of standard error that the program wrote. mpirun adds its own, and so does hwloc where /sys is not mounted.
inline std::vector<std::string> lines_of_ours(const std::string& err) {
  std::vector<std::string> lines;
  std::istringstream text(err);
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("tree_attn: ")) lines.push_back(line);
  }
  return lines;
}

/// A text whose lines are joined by blanks; several blanks are one.
inline std::string on_one_line(const std::string& text) {
  std::istringstream words(text);
  std::string line;
  for (std::string word; words >> word;) line += " " + word;
  return line + " ";
}

/// Ended with status 2, and all that was said is one line, which holds `part`.
inline void check_one_line(const Result& result, const std::string& part) {
  CAPTURE(result.err);
  CHECK(result.status == 2);
  CHECK(result.out == "");
  const std::vector<std::string> lines = lines_of_ours(result.err);
  CHECK(lines.size() == 1);
  if (lines.empty()) return;
  CHECK_MESSAGE(lines[0].find(part) != std::string::npos, "expected: ", part);
  CHECK(lines[0].size() < 400);
}

/// Ended well, and the program wrote these lines to standard error.
inline void check_success(const Result& result, const Words& lines) {
  CAPTURE(result.err);
  CHECK(result.status == 0);
  CHECK(lines_of_ours(result.err) == lines);
}

/// Ended well, and the program wrote nothing to standard error.
inline void check_silent_success(const Result& result) { check_success(result, {}); }

/// A command, and a part of the one line with which it ends; "" if it is to succeed in silence.
struct Ending {
  Words command;
  std::string line;
};

/// Runs all of them, and checks how they end.
inline void check_endings(const std::vector<Ending>& all, const Around& around = {}) {
  std::vector<Words> commands;
  for (const Ending& each : all) commands.push_back(each.command);
  const std::vector<Result> results = run_all(commands, around);
  for (std::size_t i = 0; i < all.size(); ++i) {
    CAPTURE(nlohmann::json(commands[i]).dump());
    all[i].line.empty() ? check_silent_success(results[i]) : check_one_line(results[i], all[i].line);
  }
}

/// Runs all of them, which succeed in silence, and checks what they print, once and with blanks for line breaks.
inline void check_outputs(const std::vector<std::pair<Words, std::string>>& all) {
  std::vector<Words> commands;
  for (const auto& [command, part] : all) commands.push_back(command);
  const std::vector<Result> results = run_all(commands);
  for (std::size_t i = 0; i < all.size(); ++i) {
    CAPTURE(results[i].out);
    check_silent_success(results[i]);
    const std::string out = on_one_line(results[i].out);
    const std::size_t at = out.find(all[i].second);
    CHECK_MESSAGE(at != std::string::npos, all[i].second);
    CHECK_MESSAGE(out.find(all[i].second, at + 1) == std::string::npos, all[i].second);
  }
}

/// The report of a command, which succeeds in silence.
inline nlohmann::json report_of(const Words& command) {
  const Scratch scratch;
  check_silent_success(run(command + Words{"--report", scratch.path("report")}));
  return nlohmann::json::parse(Scratch::read(scratch.path("report")));
}
/// Its runs.
inline nlohmann::json runs_of(const Words& command) { return report_of(command)["runs"]; }
