// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A launch under way: the clusters that the waiting host thread runs of it, and host threads that help.
#pragma once

#include "tree_attn/gpu/platform/emulator/share.hpp"

#include <functional>
#include <list>
#include <string>
#include <thread>

namespace tree_attn::emulated::runtime {

/// One launch, from its first cluster to its end. @pre everything but the helpers runs Unwatched
class UnderWay {
 public:
  UnderWay(const Launch& config, const Settings& how, std::function<void()> run_thread, LaunchHistory& history,
           Footprint* footprint, int device);
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;
  /// Abandons what has not ended.
  ~UnderWay();

  /// Runs what can run on this host thread. @returns whether anything has changed
  bool advance() { return share_.advance(); }
  bool has_ended() const;
  /// Whether a helper has found a deadlock.
  bool is_stuck() const { return grid_.is_stuck; }
  /// Whether no helper finds anything to do.
  bool helpers_are_idle() const;
  /// @throws what the first thread that failed has thrown
  void end();
  /// Gives up. @returns which threads wait where, and how many blocks have not started
  std::string give_up();

 private:
  struct Helper {
    Runner runner{Runner::kHelper};
    std::thread thread;
  };
  void help(Runner& runner);
  /// @throws std::bad_alloc; errors of the kernel are kept
  void run_share(Runner& runner);
  void join_helpers();
  /// Ends the launch because nothing in it can go on.
  void stop_stuck();

  Grid grid_;
  Share share_;
  Waits waits_;  ///< of the helpers, when the launch is given up
  std::list<Helper> helpers_;
};

}  // namespace tree_attn::emulated::runtime
