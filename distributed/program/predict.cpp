// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Sums over the plans.
#include "distributed/program/predict.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace tree_attn {
namespace {

/// A cluster on which a step takes as many us as there are messages, or stores, in its longest chain.
constexpr double kAtOnce = std::numeric_limits<double>::infinity();
constexpr Cluster kOneUsPerMessage{{{1, kAtOnce}, {1, kAtOnce}}, kAtOnce, 0, true, 1};

/// Most rounds of all ranks together that are walked through: rings of p ranks have p^2.
constexpr std::int64_t kMostRounds = std::int64_t{1} << 20;

}  // namespace

std::string why_not_predicted(const Algorithm& algorithm, const WorkloadShape& shape, const Topology& topology,
                              std::span<const KeyRange> ranges, const PlanOptions& options) {
  if (shape.order == LeafOrder::kDealt && !algorithm.takes_dealt) return "takes --order contiguous alone";
  const std::string refusal = algorithm.refusal ? algorithm.refusal(topology, nullptr, ranges, shape) : "";
  if (!refusal.empty()) return refusal;
  const std::int64_t n_rounds = std::ssize(algorithm.cost(topology, 0, ranges, shape, options).rounds), p = topology.size();
  return n_rounds * p > kMostRounds ? line_of("the rounds of ", p, " ranks are too many to walk through") : "";
}

Prediction predict(const Algorithm& algorithm, const WorkloadShape& shape, const Topology& topology,
                   std::span<const KeyRange> ranges, const PlanOptions& options, const std::optional<Cluster>& cluster) {
  const std::int64_t per_position = shape.batch * shape.kv_heads * (shape.head_dim + shape.value_dim);
  std::vector<RankCost> costs;
  Prediction result;
  for (int rank = 0; rank < topology.size(); ++rank) {
    const RankCost& cost = costs.emplace_back(algorithm.cost(topology, rank, ranges, shape, options));
    for (const RankCost::Round& round : cost.rounds) {
      for (const auto& [peer, bytes] : round.sends) {
        ++result.messages;
        result.bytes += bytes;
        if (topology.node_of(rank) != topology.node_of(peer)) result.bytes_between_nodes += bytes;
      }
    }
    const std::int64_t shard = OwnedLeaves(topology.range_of(rank, ranges), shape.order).n_keys(shape.n_keys);
    result.collectives = std::max(result.collectives, cost.collectives);
    result.merge_steps = std::max(result.merge_steps, cost.merge_steps);
    const std::int64_t positions = shard + cost.other_positions,
                       kv_bytes =
                           shard * shape.held_bytes_per_position() + cost.other_positions * shape.bytes_per_position(),
                       others = shape.n_rows() * shape.head_dim + cost.elements;
    result.peak_elements = std::max(result.peak_elements, positions * per_position + others);
    result.peak_kv_bytes = std::max(result.peak_kv_bytes, kv_bytes);
    result.peak_bytes = std::max(result.peak_bytes, kv_bytes + others * static_cast<std::int64_t>(sizeof(float)));
  }
  result.rounds = std::llround(step_time(costs, topology, kOneUsPerMessage));
  if (cluster) result.step_us = step_time(costs, topology, *cluster);
  return result;
}

}  // namespace tree_attn
