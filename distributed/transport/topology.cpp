// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Nodes and the order of the ranks.
#include "distributed/transport/topology.hpp"

namespace tree_attn {

Topology::Topology(const std::vector<int>& node_of_rank) : node_of_(node_of_rank.size()), index_of_(node_of_rank.size()) {
  require(!node_of_rank.empty(), "Topology: no ranks");

  // Number the nodes by first appearance, and collect their ranks.
  std::vector<int> labels;
  for (std::size_t rank = 0; rank < node_of_rank.size(); ++rank) {
    const auto found = std::find(labels.begin(), labels.end(), node_of_rank[rank]);
    const std::size_t node = static_cast<std::size_t>(found - labels.begin());
    if (found == labels.end()) {
      labels.push_back(node_of_rank[rank]);
      nodes_.emplace_back();
    }
    node_of_[rank] = static_cast<int>(node);
    nodes_[node].push_back(static_cast<int>(rank));
  }

  // Order the ranks, node by node.
  for (const std::vector<int>& ranks : nodes_) order_.insert(order_.end(), ranks.begin(), ranks.end());
  for (std::size_t index = 0; index < order_.size(); ++index)
    index_of_[static_cast<std::size_t>(order_[index])] = static_cast<int>(index);
}

Topology Topology::pretend(int size, int ranks_per_node) {
  require(size >= 1 && ranks_per_node >= 1, "Topology::pretend: ", size, " ranks in nodes of ", ranks_per_node);
  std::vector<int> node_of_rank(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) node_of_rank[static_cast<std::size_t>(rank)] = rank / ranks_per_node;
  return Topology(node_of_rank);
}

std::vector<int> Topology::leaders() const {
  std::vector<int> leaders;
  for (const std::vector<int>& ranks : nodes_) leaders.push_back(ranks.front());
  return leaders;
}

}  // namespace tree_attn
