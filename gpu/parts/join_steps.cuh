// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Which neighbouring subtrees merge, and in what order: worked out by all threads of a block at once (Thm. 1).
///
/// The subtrees of neighbouring parts form a list of entries. Every entry but the first begins at a boundary b, and each
/// boundary is one merge: of all that lies between b and the nearest higher boundary on its left with all that lies between
/// b and the nearest higher one on its right. Its height is that of the smallest node of the canonical tree that has b
/// inside, ctz(b) + 1. So a boundary finds its merge by looking at the heights of the others, and needs no other merge for
/// it. The result takes the place of its leftmost entry; merges of one height do not depend on each other.
#pragma once

#include "gpu/parts/decode_params.hpp"
#include "gpu/platform/device.hpp"

#include <bit>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Parts, and subtrees of them, that are listed at once.
inline constexpr int kListedParts = 64, kListedEntries = 256;
/// Level of a boundary between subtrees that stay apart; that of others is ctz(b).
inline constexpr int kStaysLevel = 64;

/// A subtree in the list: subtree j of part i; and the level of the boundary at which it begins.
struct JoinEntry {
  std::int32_t part_of, subtree_and_level;

  __device__ __forceinline__ int part() const { return part_of; }
  __device__ __forceinline__ int subtree() const { return subtree_and_level >> 16; }
  __device__ __forceinline__ int level() const { return subtree_and_level & 0xFFFF; }
};

/// A merge: the entries at which its two sides begin, and how many steps of its level there are from this one on.
struct JoinStep {
  static_assert(kListedEntries <= 256);
  std::int32_t packed;

  __device__ __forceinline__ static JoinStep of(int left, int right, int n_level) {
    return {left | right << 8 | n_level << 16};
  }
  __device__ __forceinline__ int left() const { return packed & 0xFF; }
  __device__ __forceinline__ int right() const { return packed >> 8 & 0xFF; }
  __device__ __forceinline__ int n_level() const { return packed >> 16; }
};

/// Entries of a list, and merges among them.
struct JoinSize {
  int n_entries, n_merges;
  __device__ __forceinline__ int n_roots() const { return n_entries - n_merges; }
};

/// Floats of shared memory that the list and the steps take.
inline constexpr int kJoinFloats = kListedParts + 32 + 3 * kListedEntries;

/// The list, the steps, and the threads' work on them. A barrier of the block stands between count() and place(), list() and
/// order(), order() and step().
class JoinSteps {
 public:
  /// @param memory [kJoinFloats], a multiple of 8 bytes
  __device__ __forceinline__ explicit JoinSteps(Shared<float> memory)
      : counts_(shared_as<int>(memory)),
        entries_(shared_as<JoinEntry>(memory + (kListedParts + 32))),
        steps_(shared_as<JoinStep>(memory + (kListedParts + 32 + 2 * kListedEntries))) {}

  /// Subtrees of part 0.
  __device__ __forceinline__ int n_first() const { return counts_[0]; }
  /// Thread i tells how many subtrees part i has.
  __device__ __forceinline__ void count(KeyRange part, int i, int n_parts) const {
    if (i < n_parts) counts_[i] = n_subtrees(part.begin, part.end);
  }
  /// The first entry of part i. @param[out] n_entries of all parts
  __device__ __forceinline__ int place(int i, int n_parts, int& n_entries) const {
    int at = 0;
    n_entries = 0;
    for (int j = 0; j < n_parts; ++j) {
      const int count = counts_[j];
      at += j < i ? count : 0;
      n_entries += count;
    }
    return at;
  }
  /// How many of the parts fit: at least the first two. @param[in,out] n_entries of all parts; of those that fit
  __device__ __forceinline__ int take(int n_parts, int room, int& n_entries) const {
    while (n_entries > room && n_parts > 2) n_entries -= counts_[--n_parts];
    return n_parts;
  }
  /// Lists the subtrees of a range. @param joined see level_of()
  __device__ __forceinline__ void list(KeyRange range, int part, int entry, KeyRange joined) const {
    TREE_ATTN_LOOP
    for (int i = 0; !range.empty(); ++i, ++entry) {
      entries_[entry] = JoinEntry{part, i << 16 | level_of(range.begin, joined)};
      range.begin = first_subtree(range.begin, range.end).end();
    }
  }
  /// The level of a boundary inside the range that is joined: two subtrees meet there and merge, unless the node that has
  /// the boundary inside reaches past the range.
  __device__ __forceinline__ static int level_of(std::int64_t boundary, KeyRange joined) {
    const std::int64_t half = boundary & -boundary;
    if (boundary - half < joined.begin || boundary + half > joined.end || half == 0) return kStaysLevel;
#if defined(__CUDA_ARCH__)
    return __ffsll(static_cast<long long>(half)) - 1;
#else
    return std::countr_zero(static_cast<std::uint64_t>(half));
#endif
  }
  /// Finds the merge of every boundary, and its place in the order: by level, from left to right.
  __device__ __forceinline__ void order(int thread, int n_threads, int n_entries) const {
    int n_merges = 0;
    for (int right = thread + 1; right < n_entries; right += n_threads) {
      const int own = JoinEntry(entries_[right]).level();
      int left = 0, n_before = 0, n_level = 0;
      n_merges = 0;
      for (int i = 1; i < n_entries; ++i) {
        const int level = JoinEntry(entries_[i]).level();
        if (i < right && level > own) left = i;
        n_before += level < own || (level == own && i < right) ? 1 : 0;
        n_level += level == own && i >= right ? 1 : 0;
        n_merges += level < kStaysLevel ? 1 : 0;
      }
      steps_[n_before] = JoinStep::of(left, right, n_level);
    }
    if (thread == 0) counts_[kMerges] = n_merges;
  }

  __device__ __forceinline__ JoinEntry entry(int i) const { return entries_[i]; }
  __device__ __forceinline__ JoinStep step(int i) const { return steps_[i]; }
  __device__ __forceinline__ int n_merges() const { return counts_[kMerges]; }
  /// The entry at which the i-th subtree that is left begins: after the merges come the boundaries that stay.
  __device__ __forceinline__ int root(int i, JoinSize size) const {
    return i == 0 ? 0 : JoinStep(steps_[size.n_merges + i - 1]).right();
  }

 private:
  /// The place of the number of merges, after the counts of what is done and of kListedParts parts.
  static constexpr int kMerges = kListedParts + 1;

  Shared<int> counts_;
  Shared<JoinEntry> entries_;
  Shared<JoinStep> steps_;
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
