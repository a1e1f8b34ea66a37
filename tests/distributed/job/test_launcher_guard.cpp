// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A launcher that hangs is killed, one that exits in time is left alone.
#include "tree_attn/distributed/job/launcher_guard.hpp"
#include "tree_attn/tests/support/tensor_files.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

namespace tree_attn {
namespace {

/// A process that exits with status 7 when the last writing end of a pipe is closed.
struct Launcher {
  Launcher() {
    REQUIRE(pipe(ends.data()) == 0);
    process = fork();
    if (process == 0) {
      close(ends[1]);
      char byte = 0;
      _exit(read(ends[0], &byte, 1) == 0 ? 7 : 1);
    }
    close(ends[0]);
  }
  int status() const {
    int status = 0;
    waitpid(process, &status, 0);
    return status;
  }

  std::array<int, 2> ends{};
  pid_t process = 0;
};

}  // namespace

TEST_CASE("launcher guard: a launcher that does not exit is killed") {
  const Launcher launcher;
  CHECK(guard_launcher(launcher.process, 0.2, ""));
  const int status = launcher.status();
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGKILL);
  close(launcher.ends[1]);
}

TEST_CASE("launcher guard: a launcher that exits in time keeps its status, and the guard holds no end of its pipes") {
  const Launcher launcher;
  CHECK(guard_launcher(launcher.process, 30, ""));
  close(launcher.ends[1]);
  const int status = launcher.status();
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 7);
}

TEST_CASE("launcher guard: a file is removed when the launcher has ended, not before") {
  const Scratch scratch;
  for (const double seconds : {0.2, 30.0}) {
    CAPTURE(seconds);
    const std::string file = scratch.write("file", "");
    const Launcher launcher;
    CHECK(guard_launcher(launcher.process, seconds, file.c_str()));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    CHECK(std::filesystem::exists(file));
    if (seconds == 30) close(launcher.ends[1]);
    launcher.status();
    for (int i = 0; i < 100 && std::filesystem::exists(file); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(!std::filesystem::exists(file));
    if (seconds != 30) close(launcher.ends[1]);
  }
}

}  // namespace tree_attn
