// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One AllReduce whose operator is the merge of states (Alg. 3).
///
/// The step from three AllReduces to one is that of the state: once (e, D, n) travel together, one operator merges them, and
/// neither the maximum nor the denominator needs a round of its own. The bits depend on the number of ranks.
#include "distributed/exchange/decoder.hpp"
#include "distributed/exchange/plan_builder.hpp"

namespace tree_attn {
namespace {

Plan fused_plan(const Topology& topology, int rank, std::span<const KeyRange> ranges, const PlanOptions&) {
  PlanBuilder builder;
  const Block state = builder.fold(builder.own(topology.range_of(rank, ranges)));
  builder.finish(builder.all_reduce(topology, rank, {state, 1}, Combine::Operator::kMerge).first);
  return builder.take();
}

}  // namespace

extern const Algorithm kFused;
constinit const Algorithm kFused{.name = "fused",
                                 .brief = "one AllReduce whose operator is the merge",
                                 .keeps_bits = false,
                                 .rounding = {.additions_per_rank = 1, .additions_per_level = 1},
                                 .exchange = &fused_plan};

}  // namespace tree_attn
