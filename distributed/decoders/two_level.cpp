// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One rule for all levels of the machine: neighbouring blocks of ranks are joined, a node first (section 5.3).
///
/// No rank leads and nothing comes down: every rank of a node talks to the rank of its index in other nodes, so all links
/// are in use, and every rank ends with the forest of the whole. PlanBuilder::join_blocks() has the rule and why its bits
/// are canonical. Messages above PlanOptions::slice_bytes are cut: the ranks of a node first share the rows, each joins its
/// slice of all nodes, and they gather the output at the end. Rows are merged independently, so the bits are the same.
#include "distributed/decoders/decoder.hpp"
#include "distributed/transport/plan_builder.hpp"
#include "reference/state/state.hpp"

#include <algorithm>
#include <numeric>

namespace tree_attn {
namespace {

/// Bytes of the largest forest of a rank or a node.
double largest_message(const Topology& topology, std::span<const KeyRange> ranges, const PlanOptions& options) {
  int n = 0;
  for (const KeyRange& range : ranges) n = std::max(n, n_subtrees(range.begin, range.end));
  for (const KeyRange& range : ranges_of_nodes(topology, ranges)) n = std::max(n, n_subtrees(range.begin, range.end));
  return static_cast<double>(n) * static_cast<double>(options.n_rows) * static_cast<double>(state_size(options.d_v)) *
         sizeof(float);
}

/// Number of slices that the rows are cut into: one for each rank of a node, or 1. Nodes of different sizes have no ranks of
/// equal slices to talk to, so there the rows stay together. Two ranks alone would send as many bytes in slices.
int n_slices(const Topology& topology, double message_bytes, const PlanOptions& options) {
  const std::size_t n = topology.node(0).size();
  if (topology.size() <= 2) return 1;
  for (int node = 1; node < topology.n_nodes(); ++node) {
    if (topology.node(node).size() != n) return 1;
  }
  return message_bytes > static_cast<double>(options.slice_bytes) ? static_cast<int>(n) : 1;
}

int radix_of(const Topology& topology, std::span<const KeyRange> ranges, const PlanOptions& options) {
  if (options.radix > 0) return options.radix;
  const double bytes = largest_message(topology, ranges, options);
  return default_radix(options.network, topology.n_nodes(), bytes / n_slices(topology, bytes, options));
}

Plan two_level_plan(const Topology& topology, int rank, std::span<const KeyRange> ranges, const PlanOptions& options) {
  const int radix = radix_of(topology, ranges, options), node = topology.node_of(rank);
  const std::vector<int>& ranks = topology.node(node);
  const int n_ranks = static_cast<int>(ranks.size()), me = topology.index_of(rank);
  const int first = topology.index_of(ranks.front());
  PlanBuilder builder;

  // Cut by rows: each rank of the node joins one slice with the ranks of its index in the other nodes.
  if (const int n = n_slices(topology, largest_message(topology, ranges, options), options); n > 1) {
    const Members neighbours{ranks, ranges.subspan(static_cast<std::size_t>(first), ranks.size()), me - first};
    const std::vector<BlockForest> slices = builder.own_slices(topology.range_of(rank, ranges), n);
    BlockForest forest = builder.scatter_rows(neighbours, slices);
    std::vector<int> peers, units(static_cast<std::size_t>(topology.n_nodes()) + 1);
    for (int i = 0; i < topology.n_nodes(); ++i) peers.push_back(topology.node(i)[static_cast<std::size_t>(me - first)]);
    std::iota(units.begin(), units.end(), 0);
    const std::vector<KeyRange> nodes = ranges_of_nodes(topology, ranges);
    forest = builder.join_blocks({peers, nodes, node}, units, radix, std::move(forest));
    builder.gather_output(neighbours, builder.root(std::move(forest)));
    return builder.take();
  }

  // Level one: the ranks of a node.
  const Members all{topology.order(), ranges, me};
  std::vector<int> units(ranks.size() + 1);
  std::iota(units.begin(), units.end(), first);
  BlockForest forest = builder.own(topology.range_of(rank, ranges));
  const int node_radix = options.node_radix > 0 ? options.node_radix : std::max(n_ranks, 2);
  forest = builder.join_blocks(all, units, node_radix, std::move(forest));

  // Level two: the nodes, `radix` of them at a time.
  units = {0};
  for (int i = 0; i < topology.n_nodes(); ++i) units.push_back(units.back() + static_cast<int>(topology.node(i).size()));
  forest = builder.join_blocks(all, units, radix, std::move(forest));
  builder.finish(builder.root(std::move(forest)));
  return builder.take();
}

}  // namespace

extern const Algorithm kTwoLevel;
constinit const Algorithm kTwoLevel{.name = "two-level",
                                    .brief = "blocks of ranks joined k at a time, the ranks of a node first",
                                    .exchange = &two_level_plan,
                                    .radix = &radix_of};

}  // namespace tree_attn
