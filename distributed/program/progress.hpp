// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A line that shows the phase of long work on a terminal, and how much of all work is done.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace tree_attn {

/// One line on standard error, written again as work goes on and removed at its end. Rank 0 shows it if standard error is a
/// terminal, or if TREE_ATTN_PROGRESS is set: a launcher gives its ranks pipes, and `./run` knows where these end.
class Progress {
 public:
  /// @param n_phases phases that will begin
  Progress(bool is_root, std::size_t n_phases)
      : shown_(is_root && (isatty(STDERR_FILENO) != 0 || std::getenv("TREE_ATTN_PROGRESS") != nullptr)),
        n_phases_(n_phases) {}
  ~Progress() { end(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Begins the next phase.
  void next(std::string_view name) {
    ++n_begun_, name_ = name, filled_ = kWidth + 1;
    part(0);
  }
  /// @param done part of the phase that is done, 0 to 1
  void part(double done) {
    const auto filled = static_cast<std::size_t>((static_cast<double>(n_begun_ - 1) + done) * kWidth) / n_phases_;
    if (!shown_ || filled == filled_) return;
    filled_ = filled;
    std::fprintf(stderr, "\r[%s%s] %s\033[K", std::string(filled, '#').c_str(), std::string(kWidth - filled, ' ').c_str(),
                 name_.c_str());
    std::fflush(stderr);
  }
  /// Removes the line.
  void end() {
    if (shown_ && n_begun_ > 0) std::fputs("\r\033[K", stderr), std::fflush(stderr);
    n_begun_ = 0;
  }

 private:
  static constexpr std::size_t kWidth = 40;
  bool shown_;
  std::size_t n_phases_, n_begun_ = 0, filled_ = 0;
  std::string name_;
};

}  // namespace tree_attn
