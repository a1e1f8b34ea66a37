// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The clusters of a launch that one host thread runs; and when all that could run wait for each other.
///
/// A cluster whose threads wait for memory keeps its place: it is resident, as on a device, while other clusters run. A
/// device has room for as many waiting blocks as it has multiprocessors, as if each filled one.
#pragma once

#include "tree_attn/gpu/platform/emulator/thread.hpp"

#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

namespace tree_attn::emulated::runtime {

/// A host thread that runs launches, or helps. A deadlock is certain once every one of them has found nothing to do since
/// anything last changed, and Settings::n_hosts have come: then all end with a report. A host thread that has run a launch
/// before, and now does something else, may still change things, and so may another process: then the deadline ends the
/// wait.
class Runner {
 public:
  enum Kind { kHost, kHelper };
  explicit Runner(Kind kind);
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;
  ~Runner();
  /// To be called before the thread looks for something to do, and when it has done something.
  std::uint64_t look() const;
  static void changed();
  /// This thread has found nothing to do since look(). @param looked what look() returned
  /// @returns whether the same holds for all others, so that nothing can change any more
  bool is_stuck(std::uint64_t looked);
  /// Whether it has found nothing since anything last changed.
  bool is_idle() const;
  void is_busy();
  /// It will run nothing any more.
  void leave();

 private:
  const Kind kind_;
  std::atomic<std::uint64_t> idle_at_;
  std::atomic<bool> deadlocked_{false}, has_left_{false};
};

/// Lets other host threads run. @param n_idle consecutive polls without work
void pause(int n_idle);

/// The clusters of one launch that one host thread runs: it starts them, sets them aside while they wait, and ends them.
class Share {
 public:
  explicit Share(Grid& grid) : grid_(grid) {}
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;
  /// Abandons clusters that wait.
  ~Share();
  /// Starts clusters while there is room, and lets those that wait look again. @returns whether anything has changed
  bool advance();
  /// Whether it has nothing to run any more.
  bool is_done() const;
  /// Adds the threads that wait, for a report.
  void count_waits(Waits& waits) const;

 private:
  bool start_one();

  Grid& grid_;
  std::deque<Cluster> clusters_;  ///< where they are: one that waits keeps its place
  std::vector<Cluster*> idle_, waiting_;
};

}  // namespace tree_attn::emulated::runtime
