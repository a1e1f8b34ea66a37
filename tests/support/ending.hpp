// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ending of a process that runs a function.
#pragma once

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

namespace tree_attn::test {

struct Ending {
  int status;       ///< of exit(), or 128 + the signal
  std::string err;  ///< standard error
};

/// Runs a function in a child process, without the signal handlers of doctest and the sanitizers.
template <class Code>
Ending ending_of(const Code& code) {
  int err[2];
  REQUIRE(::pipe(err) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(err[1], STDERR_FILENO);
    for (const int ending : {SIGBUS, SIGINT, SIGTERM, SIGHUP}) std::signal(ending, SIG_DFL);
    code();
    ::_exit(0);
  }
  ::close(err[1]);
  Ending ending{-1, ""};
  char buffer[512];
  for (ssize_t n = 0; (n = ::read(err[0], buffer, sizeof buffer)) > 0;)
    ending.err.append(buffer, static_cast<std::size_t>(n));
  ::close(err[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  ending.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ending;
}

}  // namespace tree_attn::test
