// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Keys that a query sees: the causal edge, a sliding window, and the first keys of a sequence (section 5).
///
/// A key that is not seen is not in the set that the query attends to. The tree stands over positions, so no subtree, plan
/// or message changes: the value of a subtree is the state of the keys below it that the row sees.
#pragma once

#include "reference/state/host_device.hpp"

#include <cstdint>

namespace tree_attn {

/// The positions that one query sees: [0, sinks) and [begin, end), as far as they are before `end`.
struct Seen {
  std::int64_t sinks = 0, begin = 0, end = 0;
  bool operator==(const Seen&) const = default;
  TREE_ATTN_HOST_DEVICE bool contains(std::int64_t position) const {
    return position < end && (position >= begin || position < sinks);
  }
  /// Tests whether one of the positions [first, last) is seen.
  TREE_ATTN_HOST_DEVICE bool touches(std::int64_t first, std::int64_t last) const {
    return first < end && last > first && (last > begin || first < sinks);
  }
};

/// Rule by which the l queries of a sequence see the keys in use; it holds for all sequences.
struct SeenRule {
  bool causal = false;      ///< query j of l stands at position length - l + j, and sees the keys up to there
  std::int64_t window = 0;  ///< it sees the last `window` of those; 0: all
  std::int64_t sinks = 0;   ///< and the first `sinks` keys of the sequence, wherever its window begins

  bool operator==(const SeenRule&) const = default;

  /// Keys of a sequence that query j of l sees.
  TREE_ATTN_HOST_DEVICE Seen of(std::int64_t length, std::int64_t l, std::int64_t j) const {
    const std::int64_t after = causal ? l - 1 - j : 0, end = length > after ? length - after : 0;
    return {sinks, window > 0 && end > window ? end - window : 0, end};
  }
  /// Keys that any of the l queries sees. The sliding windows move by one position at most, so together they have no gap.
  TREE_ATTN_HOST_DEVICE Seen of_any(std::int64_t length, std::int64_t l) const {
    return {sinks, of(length, l, 0).begin, length};
  }
  /// Keys that all of the l queries see.
  TREE_ATTN_HOST_DEVICE Seen of_all(std::int64_t length, std::int64_t l) const {
    return {sinks, of(length, l, l - 1).begin, of(length, l, 0).end};
  }
};

}  // namespace tree_attn
