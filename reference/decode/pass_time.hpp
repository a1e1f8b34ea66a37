// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Time that a model of a computation takes, on a real or a simulated machine (section 6).
#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace tree_attn {

/// Whether this program runs in a simulated cluster: a simulator advances the clock, and all ranks share it.
#if defined(TREE_ATTN_SIMULATED)
inline constexpr bool kSimulated = true;
#else
inline constexpr bool kSimulated = false;
#endif

/// Returns after `seconds`; immediately if they are not positive. Messages advance meanwhile.
///
/// A simulated thread sleeps, rounded to nanoseconds: the simulator sets its clock. On a real machine a sleep lasts about 50
/// us longer than requested, as much as a decode step, so the thread polls the clock instead.
/// @param progress called from time to time to advance messages; may be empty
inline void pass_time(double seconds, const std::function<void()>& progress = {}) {
  if (progress) progress();
  if (!(seconds > 0)) return;
  const std::chrono::duration<double> time(seconds);
  if constexpr (kSimulated) {
    std::this_thread::sleep_for(std::chrono::round<std::chrono::nanoseconds>(time));
  } else {
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - start < time) {
      if (progress) progress();
      std::this_thread::yield();
    }
  }
}

}  // namespace tree_attn
