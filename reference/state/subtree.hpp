// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Subtrees of the canonical merge tree, and those that cover a range of positions (section 5, Thm. 1).
///
/// The keys are the lowest subtrees 0, 1, 2, ... of one perfect binary tree. The subtrees that cover a range of positions
/// follow from its two endpoints, so they are never stored or sent. CPU and CUDA code include this file.
#pragma once

#include "reference/state/host_device.hpp"
#include "reference/state/key_range.hpp"

#include <bit>
#include <cstdint>

namespace tree_attn {

/// Keys per leaf, the subtree that is computed as a whole. Inside it every backend has one order of sums for a type and
/// shape, so bits are independent of the cuts between ranges, which are at multiples of 64.
inline constexpr std::int64_t kLeafKeys = 64;
/// Level of a leaf in the tree.
inline constexpr int kLeafLevel = std::bit_width(static_cast<std::uint64_t>(kLeafKeys)) - 1;
static_assert(kLeafKeys == std::int64_t{1} << kLeafLevel);

/// Tests whether a range begins with a leaf, or is empty. Ranges of a sequence are cut at leaves; it ends anywhere.
inline bool begins_leaf(KeyRange range) { return range.empty() || range.begin % kLeafKeys == 0; }
/// The range up to the end of the leaf in which it ends; an empty one begins there too.
inline KeyRange whole_leaves(KeyRange range) {
  const auto up = [](std::int64_t position) { return (position + kLeafKeys - 1) / kLeafKeys * kLeafKeys; };
  return {up(range.begin), up(range.end)};
}

/// A subtree: the node of the tree at level h and index i, covering the positions [i 2^h, (i + 1) 2^h).
struct Subtree {
  int level = 0;           ///< height above the keys; 0 is a single key
  std::int64_t index = 0;  ///< index among those of its level

  TREE_ATTN_HOST_DEVICE std::int64_t begin() const { return index << level; }       ///< first position covered
  TREE_ATTN_HOST_DEVICE std::int64_t end() const { return (index + 1) << level; }   ///< one past the last position covered
  TREE_ATTN_HOST_DEVICE Subtree parent() const { return {level + 1, index >> 1}; }  ///< the subtree above
  /// Tests whether `right` is the right sibling of this subtree.
  bool is_left_sibling_of(const Subtree& right) const {
    return level == right.level && (index & 1) == 0 && index + 1 == right.index;
  }
  bool operator==(const Subtree&) const = default;
};

/// The leftmost of the maximal subtrees that cover [begin, end): the largest one that starts at `begin` and ends at or
/// before `end`.
/// @pre begin < end
TREE_ATTN_HOST_DEVICE inline Subtree first_subtree(std::int64_t begin, std::int64_t end) {
  // The size is bounded by the length of the range and by the largest power of two that divides begin; 0 is divisible by
  // all.
  const auto length = static_cast<std::uint64_t>(end - begin), lowest = static_cast<std::uint64_t>(begin & -begin);
#if defined(__CUDA_ARCH__)
  const int fits = 63 - __clzll(static_cast<long long>(length)), starts = __ffsll(static_cast<long long>(lowest)) - 1;
#else
  const int fits = std::bit_width(length) - 1, starts = std::bit_width(lowest) - 1;
#endif
  const int level = starts >= 0 && starts < fits ? starts : fits;
  return {level, begin >> level};
}

/// Longest chain of additions that an element of a balanced tree passes through, n_a = ceil(log2 n) + 2: one per level, and
/// two for the sums inside a fused multiply-add. For error bounds.
inline double n_tree_additions(std::int64_t n) { return std::bit_width(static_cast<std::uint64_t>(n > 1 ? n - 1 : 0)) + 2; }

/// Number of maximal subtrees that cover [begin, end): at most 2 log2 of its length, and 1 for a length of 1.
TREE_ATTN_HOST_DEVICE inline int n_subtrees(std::int64_t begin, std::int64_t end) {
  int n = 0;
  for (; begin < end; ++n) begin = first_subtree(begin, end).end();
  return n;
}
TREE_ATTN_HOST_DEVICE inline int n_subtrees(KeyRange range) { return n_subtrees(range.begin, range.end); }

}  // namespace tree_attn
