// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The values of the nodes of the canonical tree, in either order of leaves, from their definition (section 5, Thm.
/// 1).
#pragma once

#include "tree_attn/reference/decode/backend.hpp"
#include "tree_attn/tests/support/tensor_workload.hpp"

#include <map>

namespace tree_attn::test {

/// The canonical tree over slots, written down as it is defined, for one batch entry. A leaf has the states that the backend
/// gives to a cache that holds nothing else.
class CanonicalTree {
 public:
  using States = std::vector<float>;

  /// @param n keys of the sequence @param range of the tree; leaves outside are not computed
  CanonicalTree(const Backend& backend, TensorWorkload& workload, LeafOrder order, std::int64_t n,
                KeyRange range = {0, std::int64_t{1} << kPositionBits})
      : workload_(workload) {
    for (std::int64_t begin = 0; begin < n; begin += kLeafKeys) {
      const std::int64_t slot = slot_of(order, begin / kLeafKeys);
      if (slot * kLeafKeys < range.begin || slot * kLeafKeys >= range.end) continue;
      // A leaf alone. One key in all is a sequence of its own.
      const std::int64_t end = std::min(n, begin + kLeafKeys);
      const Shard leaf{workload.k().positions(begin, end), workload.v().positions(begin, end), begin};
      const auto cache = backend.make_cache(workload.shape(), {begin, begin + kLeafKeys});
      cache->borrow(leaf, std::vector<std::int64_t>{end - begin});
      const auto session = cache->open(workload.scale);
      const auto states = session->decode({workload.query(0), std::vector<std::int64_t>{n}}).host().states();
      leaves_[slot] = States(states.begin(), states.end());
    }
  }
  /// The value of a node: the merge of its children, left first.
  States value(const Subtree& node) const {
    const auto first = leaves_.lower_bound(node.begin() / kLeafKeys);
    const std::int64_t n_rows = workload_.shape().n_rows(), d_v = workload_.shape().value_dim;
    if (first == leaves_.end() || first->first >= node.end() / kLeafKeys) {
      States empty(static_cast<std::size_t>(n_rows * state_size(d_v)));
      for (std::int64_t r = 0; r < n_rows; ++r) set_empty(empty.data() + r * state_size(d_v), d_v);
      return empty;
    }
    if (node.level == kLeafLevel) return first->second;
    States left = value({node.level - 1, 2 * node.index});
    const States right = value({node.level - 1, 2 * node.index + 1});
    for (std::int64_t r = 0; r < n_rows; ++r)
      merge(left.data() + r * state_size(d_v), right.data() + r * state_size(d_v), d_v);
    return left;
  }

 private:
  TensorWorkload& workload_;
  std::map<std::int64_t, States> leaves_;
};

}  // namespace tree_attn::test
