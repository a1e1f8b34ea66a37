// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The two levels of section 5.3: a tree to the leader of each node, the leaders over the network, the output down
/// again.
#include "distributed/exchange/decoder.hpp"
#include "distributed/exchange/plan_builder.hpp"

namespace tree_attn {
namespace {

Plan leaders_plan(const Topology& topology, int rank, std::span<const KeyRange> ranges, const PlanOptions&) {
  PlanBuilder builder;
  const int node = topology.node_of(rank);
  const std::vector<int>& ranks = topology.node(node);
  const Members members = members_of_node(topology, rank, ranges);
  const int n_ranks = static_cast<int>(ranks.size()), me = members.me;
  BlockForest forest = builder.own(topology.range_of(rank, ranges));

  // Level one: the subtrees of a node go up a binomial tree to its leader.
  if (n_ranks > 1) forest = builder.reduce(members, reduce_to_first(n_ranks, me), std::move(forest));

  // Level two: leaders exchange over the network by recursive doubling.
  const Blocks output = builder.allocate_output();
  if (me == 0) {
    const std::vector<int> leaders = topology.leaders();
    const std::vector<KeyRange> nodes = ranges_of_nodes(topology, ranges);
    if (leaders.size() > 1)
      forest = builder.reduce({leaders, nodes, node}, butterfly(topology.n_nodes(), node), std::move(forest));
    builder.finish(builder.root(std::move(forest)), output);
  }

  // And down again: z and lse in one message.
  if (n_ranks > 1) builder.broadcast(ranks, me, output);
  return builder.take();
}

}  // namespace

extern const Algorithm kLeaders;
constinit const Algorithm kLeaders{
    .name = "leaders",
    .brief = "a tree to the leader of each node, the leaders by doubling, the output down again",
    .exchange = &leaders_plan};

}  // namespace tree_attn
