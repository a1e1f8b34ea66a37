// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Alg. 3 to the letter: three AllReduces.
///
/// Two disadvantages against a merge of states: a weight exp(lse - m) carries the rounding of lse, and the bits depend on
/// the number of ranks. The max keeps NaN, an empty shard has weight 0, all-empty gives z = 0 and lse = -inf.
#include "distributed/exchange/decoder.hpp"
#include "distributed/exchange/plan_builder.hpp"

namespace tree_attn {
namespace {

/// @paper{alg_3, Alg. 3}
Plan paper_plan(const Topology& topology, int rank, std::span<const KeyRange> ranges, const PlanOptions& options) {
  using enum Combine::Operator;
  PlanBuilder builder;
  const Block state = builder.fold(builder.own(topology.range_of(rank, ranges)));
  const Blocks o = builder.allocate(kVectorBlock), lse = builder.allocate(kScalarBlock),
               own_m = builder.allocate(kScalarBlock);
  builder.add(Finish{state, o.first, lse.first});  // (o, lse) of this shard
  builder.add(Copy{{{own_m.first, lse.first}}});
  const Block m = builder.all_reduce(topology, rank, own_m, kMax, options).first;  // m = AllReduce(max, lse)
  builder.add(Weigh{o.first, lse.first, m});                                       // n = o exp(lse - m), D = exp(lse - m)
  const Block n = builder.all_reduce(topology, rank, o, kAdd, options).first;      // n = AllReduce(sum, n)
  const Block D = builder.all_reduce(topology, rank, lse, kAdd, options).first;    // D = AllReduce(sum, D)
  builder.divide(n, D, m);                                                         // z = n / D
  return builder.take();
}

}  // namespace

extern const Algorithm kPaper;
constinit const Algorithm kPaper{
    .name = "paper",
    .brief = "three AllReduces, exactly as in Alg. 3",
    .keeps_bits = false,
    .rounding = {.weight_error_per_lse = 8, .additions_per_rank = 1, .additions_per_level = 1, .rescalings = 1},
    .exchange = &paper_plan};

}  // namespace tree_attn
