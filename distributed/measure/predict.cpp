// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Sums over the plans, and the longest chain of messages.
#include "distributed/measure/predict.hpp"

#include "reference/oracle/cost_model.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

namespace tree_attn {
namespace {

/// A message in flight: its size, and its position in its chain of messages.
struct Sent {
  std::int64_t bytes, depth;
};

/// Simulates the rounds of all ranks without data. @returns messages in the longest chain
std::int64_t longest_chain(std::span<const RankCost> costs) {
  std::map<std::pair<int, int>, std::deque<Sent>> under_way;  // by sender and receiver
  std::vector<std::size_t> next(costs.size(), 0);             // round of every rank
  std::vector<bool> has_sent(costs.size(), false);
  std::vector<std::int64_t> depth(costs.size(), 0);
  const auto has_arrived = [&](std::size_t me, const RankCost::Round& round) {
    std::map<int, std::size_t> n_from;
    return std::all_of(round.receives.begin(), round.receives.end(), [&](const RankCost::Message& message) {
      const auto found = under_way.find({message.peer, static_cast<int>(me)});
      return found != under_way.end() && found->second.size() >= ++n_from[message.peer];
    });
  };

  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t me = 0; me < costs.size(); ++me) {
      if (next[me] == costs[me].rounds.size()) continue;
      const RankCost::Round& round = costs[me].rounds[next[me]];
      if (!has_sent[me]) {
        for (const auto& [peer, bytes] : round.sends)
          under_way[{static_cast<int>(me), peer}].push_back({bytes, depth[me] + 1});
        has_sent[me] = true;
      }
      if (!has_arrived(me, round)) continue;
      for (const auto& [peer, bytes] : round.receives) {
        std::deque<Sent>& queue = under_way[{peer, static_cast<int>(me)}];
        if (queue.front().bytes != bytes) {
          throw std::logic_error("rank " + std::to_string(peer) + " sends " + std::to_string(queue.front().bytes) +
                                 " bytes to rank " + std::to_string(me) + ", which expects " + std::to_string(bytes));
        }
        depth[me] = std::max(depth[me], queue.front().depth);
        queue.pop_front();
      }
      ++next[me];
      has_sent[me] = false;
      moved = true;
    }
  }
  for (std::size_t me = 0; me < costs.size(); ++me) {
    if (next[me] != costs[me].rounds.size())
      throw std::logic_error("rank " + std::to_string(me) + " waits for a message that no rank sends");
  }
  for (const auto& [ranks, queue] : under_way) {
    if (!queue.empty())
      throw std::logic_error("rank " + std::to_string(ranks.first) + " sends a message that rank " +
                             std::to_string(ranks.second) + " does not receive");
  }
  return *std::max_element(depth.begin(), depth.end());
}

}  // namespace

Prediction predict(const Algorithm& algorithm, const WorkloadShape& shape, const Topology& topology,
                   std::span<const KeyRange> ranges, const PlanOptions& options) {
  const int p = topology.size();
  const std::int64_t per_position = shape.batch * shape.kv_heads * (shape.head_dim + shape.value_dim);
  std::vector<RankCost> costs;
  Prediction result;
  std::int64_t largest_shard = 0;
  for (int rank = 0; rank < p; ++rank) {
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
    result.peak_elements =
        std::max(result.peak_elements, shard * per_position + shape.n_rows() * shape.head_dim + cost.elements);
    largest_shard = std::max(largest_shard, shard);
  }
  result.rounds = longest_chain(costs);

  // Evaluate the paper's formulas. There, keys and values have as many heads as the queries; here, they may have fewer.
  const CostShape cost{shape.batch, 0, shape.heads * shape.value_dim * shape.n_queries, shape.heads * shape.n_queries, p};
  const std::int64_t kv_elements = largest_shard * per_position;
  result.paper_peak_elements = static_cast<double>(
      algorithm.kv_shards_in_flight > 0 ? 2 * kv_elements + ring_peak_memory(cost) : kv_elements + tree_peak_memory(cost));
  result.paper_bytes = algorithm.paper_bytes(shape, p);
  return result;
}

}  // namespace tree_attn
