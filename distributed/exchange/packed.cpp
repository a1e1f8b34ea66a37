// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Alg. 3 with numerator and denominator in one message: two AllReduces.
#include "distributed/exchange/decoder.hpp"
#include "distributed/exchange/plan_builder.hpp"

namespace tree_attn {
namespace {

Plan packed_plan(const Topology& topology, int rank, std::span<const KeyRange> ranges, const PlanOptions& options) {
  using enum Combine::Operator;
  PlanBuilder builder;
  const Block state = builder.fold(builder.own(topology.range_of(rank, ranges)));
  const Blocks o = builder.allocate(kVectorBlock), lse = builder.allocate(kScalarBlock),
               own_m = builder.allocate(kScalarBlock);
  builder.add(Finish{state, o.first, lse.first});
  builder.add(Copy{{{own_m.first, lse.first}}});
  const Block m = builder.all_reduce(topology, rank, own_m, kMax, options).first;
  builder.add(Weigh{o.first, lse.first, m});
  const Block n = builder.all_reduce(topology, rank, {o.first, 2}, kAdd, options).first;  // n and D are adjacent
  builder.divide(n, n + 1, m);
  return builder.take();
}

}  // namespace

extern const Algorithm kPacked;
constinit const Algorithm kPacked{
    .name = "packed",
    .brief = "two AllReduces: the maximum, then numerator and denominator together",
    .keeps_bits = false,
    .rounding = {.weight_error_per_lse = 8, .additions_per_rank = 1, .additions_per_level = 1, .rescalings = 1},
    .exchange = &packed_plan};

}  // namespace tree_attn
