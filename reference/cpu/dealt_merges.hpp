// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Merges of leaf states in the dealt order, as threads complete the leaves (section 5.3).
#pragma once

#include "reference/cpu/leaf_kernel.hpp"
#include "reference/state/owned_leaves.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace tree_attn {

/// The states of the leaves of a dealt range for one or several heads. Leaves are read, and their states written, in the
/// order of storage; siblings merge as soon as both are complete, whichever thread completes the second one.
///
/// Below a subtree at depth t (DealtSubtree) leaf u = 0, 1, ... stands in the slot whose top 12 - t bits are the lowest of
/// u, reversed. So with C = 2^(12 - t) the merges of the tree, from the bottom up, are
///
///     state[u] <- merge(state[u], state[u + s])      for s = C, 2C, 4C, ... and then s = C/2, C/4, ..., 1,
///
/// for those u that no merge before has used up. Where leaf u + s does not exist the sibling is empty and nothing is done,
/// so the result does not depend on how many leaves there may be. Every leaf but the first is the right operand of one
/// merge. A subtree without a leaf that a query sees is empty, too: the state of another is kept where the first such
/// leaf has its states, and m of them take m - 1 merges.
class DealtMerges {
 public:
  /// @param n_heads whose leaves may be incomplete at the same time
  /// @param n_leaves most leaves of the range in one sequence
  DealtMerges(const LeafKernel& kernel, std::int64_t n_heads, std::int64_t n_leaves, std::int64_t d_v)
      : kernel_(kernel), n_leaves_(n_leaves), d_v_(d_v), met_(static_cast<std::size_t>(n_heads * n_leaves)) {}

  /// Sets the number of queries that share a head. Memory for their states is taken if there is less. @pre no step is under
  /// way
  void set_queries(std::int64_t n) {
    n_queries_ = n;
    const std::size_t needed = met_.size() * static_cast<std::size_t>(n * state_size(packed_size(d_v_)));
    if (states_.size() < needed) states_.resize(needed);
  }
  /// Forgets a step that has not ended.
  void clear() {
    for (std::atomic<bool>& met : met_) met.store(false, std::memory_order_relaxed);
  }
  /// Memory for the packed states of leaf i of the range, [n_queries][2 + padded d_v]; those of the next leaves follow.
  float* states(std::int64_t head, std::int64_t i) {
    return states_.data() + (head * n_leaves_ + i) * n_queries_ * state_size(packed_size(d_v_));
  }

  /// The leaves u of a subtree that hold one of the keys that a query sees.
  static Seen leaves_of(const DealtSubtree& subtree, const Seen& keys) {
    return {subtree.n_leaves((std::min(keys.sinks, keys.end) + kLeafKeys - 1) / kLeafKeys),
            subtree.n_leaves(keys.begin / kLeafKeys), subtree.n_leaves((keys.end + kLeafKeys - 1) / kLeafKeys)};
  }

  /// Merges the states of leaf i, which are complete, with those of its sibling, if they are complete, and so on upwards.
  /// @param keys what is seen of the whole sequence; for a leaf of which nothing is seen nothing is done
  /// @returns the packed states of the subtree of the range, the subtree itself being leaves.subtrees()[*subtree]; null if
  /// other leaves are missing
  const float* complete(std::int64_t head, const OwnedLeaves& leaves, std::int64_t i, const Seen& keys,
                        std::size_t* subtree) {
    const std::int64_t leaf = leaves.leaf(i);
    *subtree = 0;
    while (!leaves.subtrees()[*subtree].has(leaf)) ++*subtree;
    const DealtSubtree& top = leaves.subtrees()[*subtree];
    const Seen seen = leaves_of(top, keys);
    const std::int64_t n = seen.end, n_classes = std::int64_t{1} << (kDealtBits - top.depth);
    std::int64_t u = (leaf - top.first) >> top.depth;
    if (!seen.contains(u)) return nullptr;
    // The first leaf that is seen of first, first + period, ... < end; n if none is.
    const auto first_seen = [&](std::int64_t first, std::int64_t period, std::int64_t end) {
      if (first >= seen.sinks && first < seen.begin) first += (seen.begin - first + period - 1) / period * period;
      return first < end ? std::min(first, n) : n;
    };
    const auto index_of = [&](std::int64_t of) { return leaves.index_of(top.first + (of << top.depth)); };
    const auto meet = [&](std::int64_t stride, std::int64_t period, std::int64_t extent) {
      u &= ~stride;
      const std::int64_t left = first_seen(u, period, u + extent), sibling = u + stride,
                         right = first_seen(sibling, period, sibling + extent);
      if (left == n || right == n) return true;
      // Released by the first to come with its states, acquired by the second.
      std::atomic<bool>& met = met_[static_cast<std::size_t>(head * n_leaves_ + index_of(sibling))];
      if (!met.exchange(true, std::memory_order_acq_rel)) return false;
      met.store(false, std::memory_order_relaxed);  // the memory may serve another head
      kernel_.merge_states(states(head, index_of(left)), states(head, index_of(right)),
                           states(head, index_of(std::min(left, right))), n_queries_, packed_size(d_v_));
      return true;
    };
    for (std::int64_t stride = n_classes; stride < n; stride *= 2) {
      if (!meet(stride, n_classes, stride)) return nullptr;
    }
    for (std::int64_t stride = n_classes / 2; stride > 0; stride /= 2) {
      if (!meet(stride, 2 * stride, n)) return nullptr;
    }
    return states(head, index_of(first_seen(0, 1, n)));
  }

 private:
  const LeafKernel& kernel_;
  std::int64_t n_leaves_, d_v_, n_queries_ = 0;
  std::vector<float> states_;  ///< [n_heads][n_leaves][n_queries][2 + padded d_v]
  std::vector<std::atomic<bool>>
      met_;  ///< [n_heads][n_leaves]: whether one side of the merge with this right operand is complete
};

}  // namespace tree_attn
