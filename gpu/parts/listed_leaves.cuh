// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The leaves of a list that one worker walks along, and their places in the tree (sections 5 and 5.3).
///
/// The slots between two leaves of a list are empty, and the empty set is neutral bit for bit. So a leaf stands for the
/// largest subtree that begins with it and ends before the next leaf, and so does a merge of subtrees.
#pragma once

#include "gpu/parts/lane_state.cuh"
#include "gpu/parts/listed_params.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Neighbouring leaves of a list: those at the places [range.begin, range.end) / 64.
struct ListedPart {
  const ListedLeaf* leaves = nullptr;
  int n_leaves = 0;
  int last = 0, n_last = 0;  ///< which of them has the last key of the sequence, if any, and its keys

  ListedPart() = default;
  __device__ __forceinline__ ListedPart(KeyRange range, const LeavesInUse& used) {
    const int first = static_cast<int>(range.begin / kLeafKeys);
    leaves = used.leaves + first;
    n_leaves = static_cast<int>(range.size() / kLeafKeys);
    last = used.list.last - first, n_last = used.list.n_last;
  }

  __device__ __forceinline__ std::int64_t slot_of(int i) const { return load_once(&leaves[i].slot); }
  /// Where it begins in the tree: that of its first leaf, or if it has none of the leaf that follows.
  __device__ __forceinline__ std::int64_t begin() const { return slot_of(0) * kLeafKeys; }
  /// Its first row in the cache.
  __device__ __forceinline__ int row_of(int i) const { return load_once(&leaves[i].place) * static_cast<int>(kLeafKeys); }
  __device__ __forceinline__ int n_keys(int i) const { return i == last ? n_last : static_cast<int>(kLeafKeys); }
  /// Where the leaf after leaf i begins: the next one of the list, or the end of the shard.
  __device__ __forceinline__ std::int64_t next(int i) const { return slot_of(i + 1) * kLeafKeys; }

  /// Appends leaf i to a forest that covers the tree up to it: merges the subtrees on its left that it completes, and goes
  /// up where the right side is empty.
  /// @param merge_left takes the last subtree away from the forest and merges the new one into it
  /// @returns the subtree that is new
  template <class MergeLeft>
  __device__ __forceinline__ Subtree append(int i, const MergeLeft& merge_left) const {
    Subtree subtree{kLeafLevel, slot_of(i)};
    const std::int64_t next_leaf = next(i);
    for (;; subtree = subtree.parent()) {
      if ((subtree.index & 1) == 0) {
        if (subtree.parent().end() > next_leaf) return subtree;
      } else {
        if (subtree.parent().begin() < begin()) return subtree;
        merge_left();
      }
    }
  }
};

/// The forest of listed leaves, one lane's part of it. The last subtree waits in registers.
template <int kElements, int kLanes>
class ListedForest {
 public:
  __device__ __forceinline__ ListedForest(float* memory, int lane, const ListedPart& part)
      : forest_(memory, lane, part.begin()), part_(part) {}

  /// Appends the state of leaf i, the next one. @param[in,out] state overwritten
  __device__ __forceinline__ void push(int i, LaneState<kElements>& state) {
    const Subtree subtree = part_.append(i, [&] {
      if (!has_last_) forest_.load(--depth_, last_);
      has_last_ = false;
      merge(last_, state);
      state = last_;
    });
    keep(state);
    // Slots that are empty, and right of a subtree whose left sibling is not in this part.
    for (std::int64_t at = subtree.end(), next = part_.next(i); at < next; at = first_subtree(at, next).end()) {
      set_empty(state);
      keep(state);
    }
  }
  /// Stores what waits. No leaf follows.
  __device__ __forceinline__ void finish() {
    if (has_last_) forest_.store(depth_++, last_);
  }

 private:
  __device__ __forceinline__ void keep(const LaneState<kElements>& state) {
    if (has_last_) forest_.store(depth_++, last_);
    last_ = state, has_last_ = true;
  }

  LaneForest<kElements, kLanes> forest_;
  ListedPart part_;
  LaneState<kElements> last_;
  bool has_last_ = false;
  int depth_ = 0;  ///< subtrees in memory
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
