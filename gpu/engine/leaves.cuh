// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The leaves that one thread group walks along: where their rows lie, which positions have a key, and where they
/// stand in the tree (sections 5 and 5.3).
///
/// This is the one place that knows how leaves lie in a cache: one after the other, or as a list says (ListedParams).
/// Positions are counted from the first leaf of the thread group, in 32 bits: position 64 i + o is key o of leaf i.
///
/// The slots between two leaves of a list are empty, and the empty set is neutral bit for bit. So a leaf stands for the
/// largest subtree that begins with it and ends before the next leaf, and so does a merge of subtrees. Leaves one after the
/// other are a list without empty slots.
#pragma once

#include "gpu/engine/listed_params.hpp"
#include "gpu/platform/device.hpp"

#include <type_traits>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// The positions that are seen, counted from one of them: those of [begin, end), and those below `sinks` and `end`.
struct SeenHere {
  int sinks, begin, end;
};

/// Leaves one after the other.
class ContiguousLeaves {
 public:
  static constexpr bool kHasEmptySlots = false;  ///< whether there may be empty slots between two leaves

  ContiguousLeaves() = default;
  /// @param range positions of the thread group, at multiples of kLeafKeys
  /// @param used those of the shard that have a key
  __device__ __forceinline__ ContiguousLeaves(KeyRange range, KeyRange used)
      : origin_(range.begin),
        n_leaves_(static_cast<int>(leaf_at(range.end) - leaf_at(range.begin))),
        end_key_(range.empty() ? 0 : static_cast<int>((used.end < range.end ? used.end : range.end) - range.begin)),
        n_older_(used.end <= range.end ? n_leaves_ - 1 : n_leaves_) {}

  __device__ __forceinline__ int n_leaves() const { return n_leaves_; }
  /// True if the first n leaves, or all if there are fewer, are older than the newest of the sequence, that of its last key.
  __device__ __forceinline__ bool are_older(int n) const { return n <= n_older_ || n_older_ == n_leaves_; }
  /// Positions up to the last key.
  __device__ __forceinline__ int n_positions() const { return end_key_ > 0 ? end_key_ : 0; }
  /// The positions from `at` on that have a key that is seen, counted from there, as far as the leaf goes. @pre it is one of
  /// the leaves
  __device__ __forceinline__ SeenHere seen(int at) const { return {0, 0, end_key_ - at}; }
  /// True if all queries see the same keys of leaf i, those that seen() says. @param n_edge DecodeParams::n_edge()
  __device__ __forceinline__ bool are_seen_alike(int i, int n_edge) const {
    return n_edge == 0 || end_key_ - (i + 1) * static_cast<int>(kLeafKeys) >= n_edge;
  }
  /// The position in the sequence of the first key of leaf i. @pre not are_seen_alike(i)
  __device__ __forceinline__ std::int64_t position(int i) const { return origin_ + i * kLeafKeys; }

  /// The position that rows are counted from, as DecodeParams::key() takes it, and the row of the first position of a leaf.
  __device__ __forceinline__ std::int64_t origin() const { return origin_; }
  __device__ __forceinline__ int row(int at) const { return at; }
  /// The row of a position, for steps of eight positions, one after the other; the second argument keeps the row of the leaf
  /// between them.
  __device__ __forceinline__ int next_row(int at, int& /*first*/) const { return at; }

  /// The slot of leaf i in the tree.
  __device__ __forceinline__ std::int64_t slot(int i) const { return (origin_ >> kLeafLevel) + i; }

 private:
  std::int64_t origin_ = 0;
  int n_leaves_ = 0;
  int end_key_ = 0;
  int n_older_ = 0;  ///< leaves older than the newest
};

/// Leaves of a list. The one with the last key of the sequence may be any of them.
class ListedLeaves {
 public:
  static constexpr bool kHasEmptySlots = true;

  ListedLeaves() = default;
  /// @param range indices in the list, times kLeafKeys
  __device__ __forceinline__ ListedLeaves(KeyRange range, const LeavesInUse& used) {
    const int first = static_cast<int>(leaf_at(range.begin));
    leaves_ = used.leaves + first;
    n_leaves_ = static_cast<int>(leaf_at(range.end) - leaf_at(range.begin));
    last_ = used.list.last - first, seen_ = used.seen;
  }

  __device__ __forceinline__ int n_leaves() const { return n_leaves_; }
  __device__ __forceinline__ bool are_older(int n) const { return last_ < 0 || last_ >= n || last_ >= n_leaves_; }
  __device__ __forceinline__ int n_positions() const {
    const int last = (n_leaves_ - 1) * kKeys;
    return n_leaves_ == 0 ? 0 : last + seen(last).end;
  }
  __device__ __forceinline__ SeenHere seen(int at) const {
    const int o = at % kKeys, cut = load_once(&leaves_[at / kKeys].cut);
    if (cut == kSeenWhole) return {0, -o, kKeys - o};
    const std::int64_t first = cut * kLeafKeys;
    const auto here = [&](std::int64_t x) {
      return (x < first ? 0 : x > first + kKeys ? kKeys : static_cast<int>(x - first)) - o;
    };
    return {here(seen_.sinks), here(seen_.begin), here(seen_.end)};
  }
  __device__ __forceinline__ bool are_seen_alike(int i, int /*n_edge*/) const {
    return load_once(&leaves_[i].cut) == kSeenWhole;
  }
  __device__ __forceinline__ std::int64_t position(int i) const { return load_once(&leaves_[i].cut) * kLeafKeys; }

  __device__ __forceinline__ std::int64_t origin() const { return 0; }
  __device__ __forceinline__ int row(int at) const { return load_once(&leaves_[at / kKeys].place) * kKeys; }
  /// Reads the list once per leaf.
  __device__ __forceinline__ int next_row(int at, int& first) const {
    if (at % kKeys == 0) first = row(at);
    return first + at % kKeys;
  }

  __device__ __forceinline__ std::int64_t slot(int i) const { return load_once(&leaves_[i].slot); }

 private:
  static constexpr int kKeys = static_cast<int>(kLeafKeys);

  const ListedLeaf* leaves_ = nullptr;
  int n_leaves_ = 0;
  int last_ = 0;  ///< which of them has the last key, if any
  Seen seen_;
};

/// The leaves of a thread group, in the order that the parameters have.
template <class Params>
using LeavesOf = std::conditional_t<Params::kIsListed, ListedLeaves, ContiguousLeaves>;

/// Starts the first copies of a range, and waits for the launch before this one, which may still run (LaunchPlan::overlaps):
/// the copies need not wait for what it does not write.
///
/// The contract: until it ends, a launch before this one that may still run writes of the input only queries, and of keys
/// and values those at the last position of a sequence or past it. Lengths and lists are written by none of them.
/// @param leaves of the range
/// @param n_leaves that the first copies reach at most
/// @param begin starts them
template <class Leaves, class Begin>
__device__ __forceinline__ void begin_early(const Leaves& leaves, int n_leaves, const Begin& begin) {
  if (!leaves.are_older(n_leaves)) wait_for_previous_launch();
  begin();
  wait_for_previous_launch();
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
