// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One rule for all levels of the machine: neighbouring rank blocks join their forests (section 5.3).
///
/// plan_builder.hpp states the rule and why its bits are canonical; join() carries as Forest::push() does.
#include "distributed/exchange/plan_builder.hpp"

#include <algorithm>

namespace tree_attn {

BlockForest PlanBuilder::join_blocks(const Members& members, std::span<const int> begins, int radix, BlockForest mine) {
  require(radix >= 2, "join_blocks: radix ", radix, " is less than 2");
  const auto n = static_cast<std::int64_t>(begins.size()) - 1;
  const auto own = std::upper_bound(begins.begin(), begins.end(), members.me) - begins.begin() - 1;
  for (std::int64_t width = 1; width < n; width *= radix) {
    // Each is `width` of the first rank blocks; this rank's group of them begins at `first`.
    const std::int64_t first = own / (width * radix) * (width * radix), end = std::min(first + width * radix, n);
    std::vector<int> bounds;
    for (std::int64_t i = first; i < end; i += width) bounds.push_back(begins[static_cast<std::size_t>(i)]);
    bounds.push_back(begins[static_cast<std::size_t>(end)]);
    mine = join_neighbours(members, bounds, std::move(mine));
  }
  return mine;
}

BlockForest PlanBuilder::join_nodes(const Topology& topology, int rank, std::span<const KeyRange> ranges, int radix,
                                    BlockForest mine) {
  std::vector<int> begins{0};
  for (int i = 0; i < topology.n_nodes(); ++i) begins.push_back(begins.back() + static_cast<int>(topology.node(i).size()));
  return join_blocks({topology.order(), ranges, topology.index_of(rank)}, begins, radix, std::move(mine));
}

BlockForest PlanBuilder::join_slices(const Topology& topology, int rank, std::span<const KeyRange> nodes, int radix,
                                     BlockForest mine) {
  const auto local = static_cast<std::size_t>(topology.local_rank(rank));
  std::vector<int> peers, begins{0};
  for (int i = 0; i < topology.n_nodes(); ++i) {
    peers.push_back(topology.node(i)[local]);
    begins.push_back(i + 1);
  }
  return join_blocks({peers, nodes, topology.node_of(rank)}, begins, radix, std::move(mine));
}

BlockForest PlanBuilder::join_neighbours(const Members& members, std::span<const int> bounds, BlockForest mine) {
  const std::size_t n = bounds.size() - 1;
  if (n == 1) return mine;
  collective();
  mine = packed(std::move(mine));
  exchange();
  const auto own = static_cast<std::size_t>(std::upper_bound(bounds.begin(), bounds.end(), members.me) - bounds.begin()) - 1;
  const int me = members.me - bounds[own], own_size = bounds[own + 1] - bounds[own];
  std::vector<BlockForest> forests(n);

  // Begin with the next rank block, cyclically, so that no rank is the first peer of all others.
  for (std::size_t distance = 1; distance < n; ++distance) {
    const std::size_t from = (own + n - distance) % n;
    const int begin = bounds[from], end = bounds[from + 1];
    forests[from] = receive(members.ranks[static_cast<std::size_t>(begin + me % (end - begin))],
                            KeyRange{members.ranges[static_cast<std::size_t>(begin)].begin,
                                     members.ranges[static_cast<std::size_t>(end) - 1].end});
  }
  for (std::size_t distance = 1; distance < n; ++distance) {
    const std::size_t to = (own + distance) % n;
    for (int j = bounds[to] + me; j < bounds[to + 1]; j += own_size) send(members.ranks[static_cast<std::size_t>(j)], mine);
  }
  forests[own] = std::move(mine);
  return join(forests);
}

}  // namespace tree_attn
