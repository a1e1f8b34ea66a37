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

/// Adds what one rank sends: every cargo but the one that comes last. @returns the most positions of other ranks that it
/// holds at once
std::int64_t add_ring(const Ring& ring, const Topology& topology, int rank, Prediction& sum) {
  const std::vector<Ring::Cargo>& cargoes = ring.cargoes;
  const std::size_t p = cargoes.size(), me = static_cast<std::size_t>(topology.index_of(rank));
  const bool crosses = topology.node_of(rank) != topology.node_of(topology.order()[(me + 1) % p]);
  std::int64_t most = 0;
  for (std::size_t i = 0; i < p; ++i) {
    // The cargo of the rank after this one is the last to come.
    const std::size_t before = (i + p - 1) % p;
    if (i == (me + 1) % p) continue;
    for (const std::int64_t bytes : cargoes[i].bytes) {
      sum.messages += bytes > 0 ? 1 : 0;
      sum.bytes += bytes;
      if (crosses) sum.bytes_between_nodes += bytes;
    }
    most = std::max(most, (i == me ? 0 : cargoes[i].positions) + cargoes[before].positions);
  }
  return most;
}

}  // namespace

Prediction predict(const Algorithm& algorithm, const WorkloadShape& shape, const Topology& topology,
                   std::span<const KeyRange> ranges, const PlanOptions& options, const std::optional<Cluster>& cluster) {
  const std::int64_t per_position = shape.batch * shape.kv_heads * (shape.head_dim + shape.value_dim);
  std::vector<RankCost> costs;
  std::optional<Ring> ring;
  if (algorithm.ring != nullptr) ring = algorithm.ring(ranges, shape);
  Prediction result;
  for (int rank = 0; rank < topology.size(); ++rank) {
    // Of a ring the ranks have the same but for what is where.
    if (!ring || rank == 0) costs.push_back(algorithm.cost(topology, rank, ranges, shape, options));
    RankCost& cost = costs.back();
    if (ring) {
      cost.other_positions = add_ring(*ring, topology, rank, result);
    } else {
      for (const RankCost::Round& round : cost.rounds) {
        for (const auto& [peer, bytes] : round.sends) {
          ++result.messages;
          result.bytes += bytes;
          if (topology.node_of(rank) != topology.node_of(peer)) result.bytes_between_nodes += bytes;
        }
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
  if (ring) ring->merge_steps = result.merge_steps;
  const auto time_on = [&](const Cluster& on) {
    return ring ? step_time(*ring, topology, on) : step_time(costs, topology, on);
  };
  result.rounds = std::llround(time_on(kOneUsPerMessage));
  if (cluster) result.step_us = time_on(*cluster);
  return result;
}

}  // namespace tree_attn
