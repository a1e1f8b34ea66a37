// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The thread that ends a process.
#include "distributed/transport/call_limit.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <string_view>
#include <system_error>

namespace tree_attn {

void end_process(const std::string& line) {
  constexpr int kStatus = 2;
  const auto part = [](std::string_view text) { return iovec{const_cast<char*>(text.data()), text.size()}; };
  const std::array parts{part("tree_attn: "), part(line), part("\n")};
  [[maybe_unused]] const ssize_t written = ::writev(STDERR_FILENO, parts.data(), static_cast<int>(parts.size()));
  ::_exit(kStatus);
}

double turn_of(int rank) {
  constexpr double kBetween = 2;  // Open MPI's mpirun takes 1 s to end the others
  constexpr int kMost = 15;
  return kBetween * std::min(rank, kMost);
}

void CallLimit::begin_call(const char* call, double at_least) {
  if (!is_limited()) return;
  const double limit = std::max(seconds(), at_least);
  const std::string line = "rank " + std::to_string(rank()) + " has been in " + call + " for " + seconds_text(limit) +
                           (activity().empty() ? "" : " " + activity());
  const auto end = [line, longest = limit + turn_of(rank())](const std::stop_token& stop) {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any wake;
    // Not by the clock: a process that was stopped, or whose machine slept, has not waited meanwhile.
    constexpr double kTick = 0.25;
    for (double waited = 0; waited < longest && !stop.stop_requested(); waited += kTick)
      wake.wait_for(lock, stop, std::chrono::duration<double>(std::min(kTick, longest - waited)), [] { return false; });
    if (!stop.stop_requested()) end_process(line);
  };
  try {
    thread_ = std::jthread(end);
  } catch (const std::system_error&) {
    // The system starts no further thread: the call has no limit.
  }
}

}  // namespace tree_attn
