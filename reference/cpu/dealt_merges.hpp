// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Merges of leaf states in the dealt order, as threads complete the leaves (section 5.3).
#pragma once

#include "tree_attn/reference/cpu/leaf_kernel.hpp"
#include "tree_attn/reference/state/owned_leaves.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace tree_attn {

/// The states of the leaves of a dealt range for one or several heads. Leaves are read, and their states written, in the
/// order of storage; siblings merge as soon as both are complete, whichever thread completes the second one.
///
/// Below a node at depth t (DealtNode) leaf u = 0, 1, ... stands in the slot whose top 12 - t bits are the lowest of u,
/// reversed. So with C = 2^(12 - t) the merges of the tree, from the bottom up, are
///
///     state[u] <- merge(state[u], state[u + s])      for s = C, 2C, 4C, ... and then s = C/2, C/4, ..., 1,
///
/// for those u that no merge before has used up. Where leaf u + s does not exist the sibling is empty and nothing is done,
/// so the result does not depend on how many leaves there may be. Every leaf but the first is the right operand of one
/// merge.
class DealtMerges {
 public:
  /// @param n_heads whose leaves may be incomplete at the same time @param n_queries that share a head
  /// @param n_leaves most leaves of the range in one sequence
  DealtMerges(const LeafKernel& kernel, std::int64_t n_heads, std::int64_t n_leaves, std::int64_t n_queries,
              std::int64_t d_v)
      : kernel_(kernel),
        n_leaves_(n_leaves),
        n_queries_(n_queries),
        d_v_(d_v),
        states_(static_cast<std::size_t>(n_heads * n_leaves * n_queries * state_size(packed_size(d_v)))),
        met_(static_cast<std::size_t>(n_heads * n_leaves)) {}

  /// Begins a step.
  void clear() {
    for (std::atomic<bool>& met : met_) met.store(false, std::memory_order_relaxed);
  }
  /// Memory for the packed states of leaf i of the range, [n_queries][2 + padded d_v]; those of the next leaves follow.
  float* states(std::int64_t head, std::int64_t i) {
    return states_.data() + (head * n_leaves_ + i) * n_queries_ * state_size(packed_size(d_v_));
  }

  /// Merges the states of leaf i, which are complete, with those of its sibling, if they are complete, and so on upwards.
  /// @param n_leaves leaves of the whole sequence
  /// @returns the packed states of the node of the range, the node itself being leaves.nodes()[*node]; null if other leaves
  /// are missing
  const float* complete(std::int64_t head, const OwnedLeaves& leaves, std::int64_t i, std::int64_t n_leaves,
                        std::size_t* node) {
    const std::int64_t leaf = leaves.leaf(i);
    *node = 0;
    while (!leaves.nodes()[*node].has(leaf)) ++*node;
    const DealtNode& top = leaves.nodes()[*node];
    const std::int64_t n = top.n_leaves(n_leaves), n_classes = std::int64_t{1} << (kDealtBits - top.depth);
    const auto index_of = [&](std::int64_t u) { return leaves.index_of(top.first + (u << top.depth)); };
    std::int64_t u = (leaf - top.first) >> top.depth;
    const auto meet = [&](std::int64_t stride) {
      const std::int64_t left = u & ~stride, right = u | stride;
      if (right >= n) return true;
      const std::int64_t right_index = index_of(right);
      // Released by the first to come with its states, acquired by the second.
      std::atomic<bool>& met = met_[static_cast<std::size_t>(head * n_leaves_ + right_index)];
      if (!met.exchange(true, std::memory_order_acq_rel)) return false;
      met.store(false, std::memory_order_relaxed);  // the memory may serve another head
      float* const merged = states(head, index_of(left));
      kernel_.merge_states(merged, states(head, right_index), merged, n_queries_, packed_size(d_v_));
      u = left;
      return true;
    };
    for (std::int64_t stride = n_classes; stride < n; stride *= 2) {
      if (!meet(stride)) return nullptr;
    }
    for (std::int64_t stride = n_classes / 2; stride > 0; stride /= 2) {
      if (!meet(stride)) return nullptr;
    }
    return states(head, index_of(0));
  }

 private:
  const LeafKernel& kernel_;
  std::int64_t n_leaves_, n_queries_, d_v_;
  std::vector<float> states_;  ///< [n_heads][n_leaves][n_queries][2 + padded d_v]
  std::vector<std::atomic<bool>>
      met_;  ///< [n_heads][n_leaves]: whether one side of the merge with this right operand is complete
};

}  // namespace tree_attn
