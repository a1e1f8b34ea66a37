// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How a thread requests the rows that it reads: chosen by timing a few chunks with each.
#pragma once

#include "tree_attn/reference/cpu/leaf_kernel.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace tree_attn {

/// Times each of Requests for a few chunks, and keeps the one with the least time per key.
///
/// How far the hardware prefetchers look ahead differs from processor to processor, and requests that make one faster make
/// another slower (docs/IV.3-cost.md), so no build can know. A choice holds until a step reads twice as much as the one it
/// was made for, or half as much: rows may then come from another level of the cache. The first step of a size is not timed,
/// since its rows may not be in memory yet.
class RequestChoice {
 public:
  /// Chunks that each is timed for, one after the other; the least time counts, which no interruption makes shorter.
  static constexpr int kTries = 4;

  /// A step begins that reads so many bytes.
  void begin_step(double bytes) {
    is_first_ = bytes >= 2 * bytes_ || bytes <= bytes_ / 2;
    if (!is_first_) return;
    *this = {};
    bytes_ = bytes;
  }

  /// Whether the time of the next chunk is needed, for took().
  bool is_open() const { return !is_first_ && n_timed_ < kTries * kAll.size(); }
  /// The choice, or what is to be timed.
  Requests requests() const {
    if (is_first_) return kAll[0];
    if (is_open()) return kAll[n_timed_ / kTries];
    return kAll[static_cast<std::size_t>(std::min_element(least_.begin(), least_.end()) - least_.begin())];
  }
  /// A chunk took so many seconds with requests(). One of less than half as many keys as the longest is not counted: it
  /// takes longer per key. Nothing is counted once the choice is made.
  void took(std::int64_t n_keys, double seconds) {
    if (!is_open()) return;
    longest_ = std::max(longest_, n_keys);
    if (2 * n_keys < longest_) return;
    double& least = least_[n_timed_++ / kTries];
    least = std::min(least, seconds / static_cast<double>(n_keys));
  }

 private:
  static constexpr std::array kAll{Requests::kAhead, Requests::kNone};
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  double bytes_ = 0;
  bool is_first_ = true;
  std::size_t n_timed_ = 0;
  std::int64_t longest_ = 0;
  std::array<double, kAll.size()> least_{kInfinity, kInfinity};
};

}  // namespace tree_attn
