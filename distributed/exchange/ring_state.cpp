// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The second baseline: states hop around the ring (section 6).
#include "distributed/exchange/decoder.hpp"
#include "distributed/exchange/plan_builder.hpp"

namespace tree_attn {
namespace {

/// p - 1 hops one after the other: each rank hands on what it last received.
Plan ring_state_plan(const Topology& topology, int rank, std::span<const KeyRange> ranges, const PlanOptions&) {
  const std::vector<int>& order = topology.order();
  const std::size_t p = order.size(), me = static_cast<std::size_t>(topology.index_of(rank));
  PlanBuilder builder;
  std::vector<BlockForest> forests(p);
  forests[me] = builder.own(ranges[me]);

  // Hop i: the states of index me - i go on to the right, those of me - i - 1 come in from the left.
  for (std::size_t hop = 0; hop + 1 < p; ++hop) {
    const std::size_t leaving = (me + p - hop) % p, arriving = (me + 2 * p - hop - 1) % p;
    builder.exchange();
    builder.send(order[(me + 1) % p], forests[leaving]);
    forests[arriving] = builder.receive(order[(me + p - 1) % p], ranges[arriving]);
  }
  builder.finish(builder.root(builder.join(forests)));
  return builder.take();
}

}  // namespace

extern const Algorithm kRingState;
constinit const Algorithm kRingState{
    .name = "ring-state", .brief = "second baseline: states circulate around the ring", .exchange = &ring_state_plan};

}  // namespace tree_attn
