// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The process that waits for the launcher.
#include "tree_attn/distributed/job/launcher_guard.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tree_attn {

bool guard_launcher(pid_t launcher, double seconds, const char* file) {
  // A descriptor, and not the number: that may belong to another process when the time is over.
  const int handle = static_cast<int>(syscall(SYS_pidfd_open, launcher, 0));
  if (handle < 0) return false;
  // Without the handlers of fork(): MPI registers some, and other threads may hold locks. The child makes system calls only.
  const pid_t guard = _Fork();
  if (guard == 0) {
    // The launcher ends the process groups of the ranks, and waits for the other ends of their pipes and sockets.
    setsid();
    dup2(handle, STDIN_FILENO);
    close_range(STDIN_FILENO + 1, ~0U, 0);
    pollfd exit{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (poll(&exit, 1, static_cast<int>(seconds * 1e3)) == 0) {
      syscall(SYS_pidfd_send_signal, STDIN_FILENO, SIGKILL, nullptr, 0);
      poll(&exit, 1, 1000);
    }
    unlink(file);
    _exit(0);
  }
  close(handle);
  return guard > 0;
}

}  // namespace tree_attn
