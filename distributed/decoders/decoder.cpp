// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The list of algorithms, and how one is run.
#include "distributed/decoders/decoder.hpp"

#include "distributed/transport/host_fabric.hpp"
#include "reference/data/input_error.hpp"

#include <algorithm>
#include <stdexcept>

namespace tree_attn {

extern const Algorithm kPaper, kPacked, kFused, kGather, kTwoLevel, kRing, kRingState;

std::span<const Algorithm> algorithms() {
  static const Algorithm all[] = {kPaper, kPacked, kFused, kGather, kTwoLevel, kRing, kRingState};
  return all;
}

const Algorithm& find_algorithm(std::string_view name) {
  std::string known;
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.name == name) return algorithm;
    known += (known.empty() ? "" : ", ") + std::string(algorithm.name);
  }
  throw InputError("--algorithm " + std::string(name) + ": unknown; use one of " + known);
}

Forest<float>& local_forest(Transport& transport, const DecodeStep& step) {
  return step.shard.session().decode(step.q, step.lengths, step.lift, [&] { transport.progress(); }).host();
}

DecodeOutput run_plan(const Plan& plan, Transport& transport, const Forest<float>& own, int lift) {
  if (own.subtrees().size() != static_cast<std::size_t>(plan.n_own))
    throw std::logic_error("run_plan: the plan is for another range of positions");
  HostFabric fabric(transport, plan, own.n_rows(), own.d_v(), lift);
  std::ranges::copy(own.states(), fabric.elements({0, plan.n_own}).begin());
  execute(plan, fabric);
  const std::span<const float> z = fabric.elements({plan.z, 1}), lse = fabric.elements({plan.lse, 1});
  return {{z.begin(), z.end()}, {lse.begin(), lse.end()}};
}

DecodeOutput Algorithm::run(Transport& transport, const DecodeStep& step) const {
  if (const auto* loop = std::get_if<OwnLoop>(&exchange)) return loop->run(transport, step);
  const Plan plan = std::get<PlanOf>(exchange)(transport.topology(), transport.rank(), step.ranges);
  return run_plan(plan, transport, local_forest(transport, step), step.lift);
}

RankCost Algorithm::cost(const Topology& topology, int rank, std::span<const KeyRange> ranges,
                         const WorkloadShape& shape) const {
  if (const auto* loop = std::get_if<OwnLoop>(&exchange)) return loop->cost(topology, rank, ranges, shape);
  return cost_of(std::get<PlanOf>(exchange)(topology, rank, ranges), shape.n_rows(), shape.value_dim);
}

}  // namespace tree_attn
