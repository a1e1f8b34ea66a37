// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One rule for all levels of the machine: neighbouring rank blocks are joined, a node first (section 5.3).
///
/// No rank leads and no output comes down: every rank of a node exchanges with the rank of its index in other nodes, so all
/// links are in use, and every rank ends with the forest of the whole. PlanBuilder::join_blocks() states the rule and why
/// its bits are canonical. Where n_slices() says so, the rows are cut: the ranks of a node first scatter
/// slices of the rows, each joins its slice of all nodes, and they gather the output at the end. Rows are merged
/// independently, so the bits are the same. On one node whose ranks have as many states each, the library of the transport
/// may gather them instead, see library_gathers().
#include "distributed/exchange/decoder.hpp"
#include "distributed/exchange/plan_builder.hpp"

#include <algorithm>
#include <numeric>

namespace tree_attn {
namespace {

/// Bytes of the longest message: the forest of a rank or a node.
double longest_message(const Topology& topology, std::span<const KeyRange> ranges, const PlanOptions& options) {
  return std::max(longest_forest_bytes(ranges, options), longest_forest_bytes(ranges_of_nodes(topology, ranges), options));
}

int radix_of_two_level(const Topology& topology, std::span<const KeyRange> ranges, const PlanOptions& options) {
  return radix_between_nodes(topology, longest_message(topology, ranges, options), options);
}

Plan two_level_plan(const Topology& topology, int rank, std::span<const KeyRange> ranges, const PlanOptions& options) {
  const double bytes = longest_message(topology, ranges, options);
  const int radix = radix_between_nodes(topology, bytes, options), me = topology.index_of(rank);
  const Members neighbours = members_of_node(topology, rank, ranges);
  const int n_ranks = static_cast<int>(neighbours.ranks.size());
  PlanBuilder builder;

  if (library_gathers(topology, ranges, options)) {
    builder.finish(builder.root(builder.all_gather(ranges, builder.own(topology.range_of(rank, ranges)))));
    return builder.take();
  }

  // Cut by rows: each rank of the node joins one slice with the ranks of its index in the other nodes.
  if (const int n = n_slices(topology, bytes, options); n > 1) {
    BlockForest forest = builder.scatter_rows(neighbours, topology.range_of(rank, ranges), equal_slices(n));
    forest = builder.join_slices(topology, rank, ranges_of_nodes(topology, ranges), radix, std::move(forest));
    builder.gather_output(neighbours, builder.root(std::move(forest)));
    return builder.take();
  }

  // Level one: the ranks of a node.
  std::vector<int> begins(static_cast<std::size_t>(n_ranks) + 1);
  std::iota(begins.begin(), begins.end(), me - neighbours.me);
  BlockForest forest = builder.own(topology.range_of(rank, ranges));
  const int node_radix = options.node_radix > 0 ? options.node_radix
                                                : default_radix(options.network.inside, options.network.overhead_us, n_ranks,
                                                                longest_forest_bytes(neighbours.ranges, options));
  forest = builder.join_blocks({topology.order(), ranges, me}, begins, node_radix, std::move(forest));

  // Level two: the nodes, `radix` of them at a time.
  forest = builder.join_nodes(topology, rank, ranges, radix, std::move(forest));
  builder.finish(builder.root(std::move(forest)));
  return builder.take();
}

}  // namespace

extern const Algorithm kTwoLevel;
constinit const Algorithm kTwoLevel{.name = "two-level",
                                    .brief = "blocks of ranks joined k at a time, the ranks of a node first",
                                    .exchange = &two_level_plan,
                                    .heads = &heads_plan,
                                    .radix = &radix_of_two_level};

}  // namespace tree_attn
