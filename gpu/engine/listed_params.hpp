// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A decode step over leaves that a list names, by ascending slot: the dealt order on a device (section 5.3).
///
/// A cache holds the leaves of its range in the order in which they were appended. In the dealt order neighbours in memory
/// are far apart in the tree, so the kernels read the leaves of a sequence in the order of a list. Work is divided by
/// slots, as in the other order, and a run of units finds its leaves in the list: position 64 i + o is key o of the i-th
/// leaf of the list.
///
/// Where queries have a window, the list has the leaves that one of them sees, in either order: those of the sinks, and
/// those of the window. The others are neither read nor counted as work.
///
/// A page table is such a list too: pages of whole leaves, which lie anywhere in a pool for all sequences of a batch. Leaf i
/// has slot i, `place` is a place of its page, and the stride from one entry to the next is 0. No bit depends on the places.
#pragma once

#include "gpu/engine/params.hpp"

#include <cstdint>

namespace tree_attn {

/// A leaf of a list.
struct ListedLeaf {
  std::int32_t slot;   ///< in the tree of this list, see LeafList
  std::int32_t place;  ///< in the cache: its first row is 64 place
  std::int32_t cut;    ///< its number in the sequence; or kSeenWhole
};
/// ListedLeaf::cut where all queries see all keys of the leaf.
inline constexpr std::int32_t kSeenWhole = -1;

/// The list of a sequence: the leaves of the shard that have a key that a query sees. Its tree has the slots of the
/// canonical tree without the levels at which no leaf of the list has a sibling, so the merges are the same, and their
/// number is small.
struct LeafList {
  std::int64_t begin = 0, end = 0;  ///< positions of the shard in that tree
  std::int32_t n_leaves = 0;        ///< of the list
  std::int32_t last = 0;            ///< index of the leaf with the last key of the shard; negative if it is not listed
  /// Slots of the leaves on both sides of the widest gap between two of them: UsedSlots.
  std::int32_t first_slot = 0, gap = 0, after_gap = 0, end_slot = 0;
  std::int32_t n_before_gap = 0;  ///< leaves before the gap
  bool operator==(const LeafList&) const = default;
};

/// The list of one sequence, where its leaves are in memory, and which of their keys are seen.
struct LeavesInUse {
  const ListedLeaf* leaves = nullptr;
  LeafList list;
  Seen seen;
};

/// The input of a kernel that reads listed leaves. `begin` and `end` are the rows of the cache from 0 on: whole leaves, but
/// perhaps for the last. All have memory.
struct ListedParams : DecodeParams {
  static constexpr bool kIsListed = true;

  const LeafList* lists = nullptr;   ///< [b]
  const ListedLeaf* leaf = nullptr;  ///< [b, most_leaves]
  std::int64_t most_leaves = 0;      ///< of a list
  std::int64_t tree_positions = 0;   ///< the most that the shard has in the tree of a list
  std::int64_t n_subtrees = 0;       ///< that cover the shard

  /// The leaves with the keys that one row sees, or any.
  TREE_ATTN_HOST_DEVICE LeavesInUse in_use(std::int64_t kv_head, std::int64_t r) const {
    const std::int64_t entry = entry_of(kv_head);
    return {leaf + entry * most_leaves, lists[entry], seen(kv_head, r)};
  }
  TREE_ATTN_HOST_DEVICE LeavesInUse in_use(std::int64_t kv_head) const {
    const std::int64_t entry = entry_of(kv_head);
    return {leaf + entry * most_leaves, lists[entry], rule.of_any(lengths[entry], n_queries)};
  }
  TREE_ATTN_HOST_DEVICE KeyRange shard_of_entry(std::int64_t entry) const { return {lists[entry].begin, lists[entry].end}; }
  std::int64_t n_subtrees_of_shard() const { return n_subtrees; }
  TREE_ATTN_HOST_DEVICE UsedSlots used_slots(std::int64_t entry) const {
    const LeafList& list = lists[entry];
    return {Count(list.first_slot), Count(list.gap), Count(list.after_gap), Count(list.end_slot)};
  }
  std::int64_t most_slots() const { return leaf_at(tree_positions + kLeafKeys - 1); }
  /// Indices in the list, times kLeafKeys.
  TREE_ATTN_HOST_DEVICE KeyRange leaves_of_slots(std::int64_t entry, std::int64_t from, std::int64_t to) const {
    return {first_leaf_at(entry, from) * kLeafKeys, first_leaf_at(entry, to) * kLeafKeys};
  }

 private:
  /// The first leaf of a list that stands at a slot or after it. Most lists have every slot on either side of the gap.
  TREE_ATTN_HOST_DEVICE std::int64_t first_leaf_at(std::int64_t entry, std::int64_t slot) const {
    const LeafList list = lists[entry];
    const ListedLeaf* const leaves = leaf + entry * most_leaves;
    if (slot <= list.first_slot) return 0;
    if (slot >= list.end_slot) return list.n_leaves;
    const std::int64_t guess = slot < list.gap         ? slot - list.first_slot
                               : slot > list.after_gap ? list.n_before_gap + (slot - list.after_gap)
                                                       : list.n_before_gap;
    if (slot >= list.gap && slot <= list.after_gap) return guess;
    if (guess < list.n_leaves && leaves[guess].slot == slot) return guess;
    std::int64_t low = 0, high = list.n_leaves;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (leaves[middle].slot < slot)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }
};

}  // namespace tree_attn
