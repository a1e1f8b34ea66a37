// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The two levels of a cluster: ranks that share memory form a node, and a network connects the nodes (section 5.3).
#pragma once

#include "reference/state/key_range.hpp"
#include "reference/state/require.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <vector>

namespace tree_attn {

/// The node of every rank, and the order in which the ranks hold the sequence.
///
/// Ranks are ordered by node, then by rank, and the shards of the sequence follow this order. So the ranks of a node hold
/// consecutive positions, however the launcher assigned ranks to nodes.
class Topology {
 public:
  /// @param node_of_rank a label of the node of each rank; nodes are numbered in the order of their lowest ranks
  /// @throws std::invalid_argument if there are no ranks
  explicit Topology(const std::vector<int>& node_of_rank);
  /// A topology in which every `ranks_per_node` consecutive ranks form a node; the last node may have fewer.
  /// @throws std::invalid_argument unless both numbers are at least 1
  static Topology pretend(int size, int ranks_per_node);

  int size() const { return static_cast<int>(node_of_.size()); }
  int n_nodes() const { return static_cast<int>(nodes_.size()); }
  /// Number of the node of a rank. @throws std::out_of_range if there is no such rank
  int node_of(int rank) const { return node_of_[checked("node_of", "rank", rank, size())]; }
  /// Ranks of a node, ascending; the first is its leader. @throws std::out_of_range if there is no such node
  const std::vector<int>& node(int i) const { return nodes_[checked("node", "node", i, n_nodes())]; }
  /// Tests whether all nodes have as many ranks.
  bool has_equal_nodes() const {
    return std::ranges::all_of(nodes_, [this](const auto& node) { return node.size() == nodes_[0].size(); });
  }
  /// The lowest rank of every node.
  std::vector<int> leaders() const;
  /// All ranks, in the order in which they hold the sequence.
  const std::vector<int>& order() const { return order_; }
  /// Index of a rank in order(). @throws std::out_of_range if there is no such rank
  int index_of(int rank) const { return index_of_[checked("index_of", "rank", rank, size())]; }
  /// Number of a rank among the ranks of its node.
  int local_rank(int rank) const { return index_of(rank) - index_of(node(node_of(rank)).front()); }
  /// The element of a rank in ranges that are given in that order.
  /// @throws std::invalid_argument unless there are as many as ranks
  KeyRange range_of(int rank, std::span<const KeyRange> ranges) const {
    require(ranges.size() == node_of_.size(), "Topology::range_of: ", ranges.size(), " ranges for ", size(), " ranks");
    return ranges[static_cast<std::size_t>(index_of(rank))];
  }

 private:
  static std::size_t checked(const char* function, const char* what, int i, int n) {
    require<std::out_of_range>(i >= 0 && i < n, "Topology::", function, ": ", what, " ", i, " of ", n);
    return static_cast<std::size_t>(i);
  }

  std::vector<int> node_of_, order_, index_of_;
  std::vector<std::vector<int>> nodes_;
};

}  // namespace tree_attn
