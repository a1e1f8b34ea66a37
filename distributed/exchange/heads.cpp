// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The output by heads: states are scattered by the rank that ends with their heads, and nothing comes back
/// (section 5.3).
#include "distributed/exchange/plan_builder.hpp"

#include <algorithm>
#include <utility>

namespace tree_attn {

Plan heads_plan(const Topology& topology, int rank, std::span<const KeyRange> ranges, const PlanOptions& options) {
  const int p = topology.size(), me = topology.index_of(rank), n_nodes = topology.n_nodes();
  require(options.batch <= (1 << 20) / p, "heads_plan: a batch of ", options.batch, " over ", p,
          " ranks; at most 2^20 parts of the rows are possible");
  const int batch = std::max(1, static_cast<int>(options.batch));
  const std::vector<KeyRange> of_nodes = ranges_of_nodes(topology, ranges);
  const bool has_two_rounds =
      n_nodes > 1 && n_nodes < p && topology.has_equal_nodes() &&
      std::ranges::all_of(of_nodes, [](const KeyRange& node) { return n_subtrees(node.begin, node.end) == 1; });

  // The rows of a rank: of every batch entry its heads, which follow each other.
  const auto add_rows = [&](std::vector<RowSlice>& slices, int of_rank) {
    for (int entry = 0; entry < batch; ++entry) slices.push_back({entry * p + of_rank, batch * p});
  };
  std::vector<RowSlice> mine;
  add_rows(mine, rank);

  // Round one: local rank i of a node gets the rows of the ranks with this local rank, one node after the other.
  const Members members = has_two_rounds ? members_of_node(topology, rank, ranges) : Members{topology.order(), ranges, me};
  std::vector<std::vector<RowSlice>> parts(members.ranks.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (int node = 0; node < (has_two_rounds ? n_nodes : 1); ++node)
      add_rows(parts[i], has_two_rounds ? topology.node(node)[i] : members.ranks[i]);
  }
  PlanBuilder builder;
  BlockForest forest = builder.scatter_rows(members, topology.range_of(rank, ranges), parts);

  // Round two, between nodes: each of these ranks gets its own rows.
  if (has_two_rounds) {
    const int my_node = topology.node_of(rank);
    const auto local = static_cast<std::size_t>(members.me);
    const auto n = static_cast<std::int32_t>(mine.size());
    const auto of_node = [&, first = forest.blocks.front()](int node) { return first + node * n; };
    std::vector<BlockForest> forests(static_cast<std::size_t>(n_nodes));
    builder.collective();
    builder.exchange();
    for (int distance = 1; distance < n_nodes; ++distance) {
      const int from = (my_node + n_nodes - distance) % n_nodes, to = (my_node + distance) % n_nodes;
      forests[static_cast<std::size_t>(from)] =
          builder.receive(topology.node(from)[local], of_nodes[static_cast<std::size_t>(from)], mine);
      builder.send(topology.node(to)[local], Blocks{of_node(to), n});
    }
    forest.blocks = {of_node(my_node)};
    forests[static_cast<std::size_t>(my_node)] = std::move(forest);
    forest = builder.join(forests, n);
  }
  builder.finish(std::move(forest), mine);
  return builder.take();
}

}  // namespace tree_attn
