// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A launch under way, which the waiting host thread runs: it starts clusters, sets them aside while they wait, and
/// ends them.
///
/// A cluster whose threads wait for memory stays resident, as on a device, while other clusters run. A
/// device has room for as many waiting blocks as it has multiprocessors, as if each filled one.
#pragma once

#include "gpu/emulator/queue.hpp"
#include "gpu/emulator/thread.hpp"

#include <atomic>
#include <deque>
#include <string>
#include <vector>

namespace tree_attn::emulated::runtime {

/// The blocks that a device holds, of the launches of all host threads.
struct Residency {
  std::atomic<int> n_blocks{0};
  std::atomic<int> n_waiting{0};  ///< clusters that wait for memory
};
Residency& residency_of(int device);

/// One launch, from its first cluster to its end. @pre all of it runs Unwatched
class UnderWay {
 public:
  UnderWay(const LaunchCall& call, LaunchHistory& history, Footprint* footprint, int device);
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;
  /// Abandons clusters that wait.
  ~UnderWay();

  /// Starts clusters while there is room, and lets those that wait look again. @returns whether anything has changed
  bool advance();
  bool has_ended() const;
  /// @throws what the first thread that failed has thrown
  void end() const;
  /// Describes the waiting threads, and counts the blocks that have not started.
  std::string waits() const;

 private:
  bool start_one();
  bool enter_device();
  void leave_device();

  Grid grid_;
  Residency& device_;
  std::deque<Cluster> clusters_;  ///< where they are: one that waits stays there
  std::vector<Cluster*> idle_, waiting_;
};

}  // namespace tree_attn::emulated::runtime
