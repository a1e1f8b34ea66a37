// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Closed formulas of messages and bytes.
#include "distributed/measure/predict.hpp"

#include <bit>

#include "distributed/transport/schedule.hpp"
#include "reference/oracle/cost_model.hpp"

namespace tree_attn {
namespace {

/// Messages of an AllReduce by recursive doubling over p members.
std::int64_t all_reduce_messages(int p) {
  const int m = floor_power_of_two(p);
  return std::int64_t{m} * std::countr_zero(static_cast<unsigned>(m)) + 2 * (p - m);
}

/// Those of them that cross from one node to another.
std::int64_t all_reduce_messages_between_nodes(const Topology& topology) {
  std::int64_t n = 0;
  const std::vector<int>& row = topology.row();
  for (int me = 0; me < topology.size(); ++me) {
    for (const ScheduleStep& step : butterfly(topology.size(), me)) {
      n += step.sends && topology.node_of(row[static_cast<std::size_t>(me)]) != topology.node_of(row[static_cast<std::size_t>(step.peer)]);
    }
  }
  return n;
}

/// Places of the row whose right neighbour, around the ring, is on another node.
std::int64_t ring_borders(const Topology& topology) {
  std::int64_t n = 0;
  for (int i = 0; i < topology.size(); ++i) {
    const std::vector<int>& row = topology.row();
    n += topology.node_of(row[static_cast<std::size_t>(i)]) != topology.node_of(row[static_cast<std::size_t>((i + 1) % topology.size())]);
  }
  return n;
}

/// Messages of Bruck's AllGather between nodes, and the blocks that they carry.
std::int64_t gather_blocks_between_nodes(const Topology& topology) {
  const int p = topology.size();
  const std::vector<int>& row = topology.row();
  std::int64_t n = 0;
  for (int me = 0; me < p; ++me) {
    for (int held = 1; held < p; held *= 2) {
      const int to = row[static_cast<std::size_t>((me - held + p) % p)];
      if (topology.node_of(row[static_cast<std::size_t>(me)]) != topology.node_of(to)) n += std::min(held, p - held);
    }
  }
  return n;
}

}  // namespace

Prediction predict(std::string_view algorithm, const ProblemShape& shape, const Topology& topology) {
  const std::int64_t p = topology.size(), M = topology.n_nodes(), n_rows = shape.n_rows();
  const std::int64_t state = 4 * n_rows * state_size(shape.value_dim), output = 4 * n_rows * (shape.value_dim + 1);
  const std::int64_t cache = shape.n_keys * shape.bytes_per_position();
  const std::int64_t doubling = all_reduce_messages(topology.size());
  const std::int64_t between = all_reduce_messages_between_nodes(topology);
  Prediction result;

  // Messages and bytes of our schedules.
  if (algorithm == "paper") {
    result.messages = 3 * doubling;
    result.bytes = doubling * state;
    result.bytes_between_nodes = between * state;
  } else if (algorithm == "packed") {
    result.messages = 2 * doubling;
    result.bytes = doubling * state;
    result.bytes_between_nodes = between * state;
  } else if (algorithm == "fused") {
    result.messages = doubling;
    result.bytes = doubling * state;
    result.bytes_between_nodes = between * state;
  } else if (algorithm == "gather") {
    result.messages = p * std::bit_width(static_cast<unsigned>(p - 1));
    result.bytes = p * (p - 1) * state;
    result.bytes_between_nodes = gather_blocks_between_nodes(topology) * state;
  } else if (algorithm == "two-level") {
    result.messages = 2 * (p - M) + all_reduce_messages(topology.n_nodes());
    result.bytes_between_nodes = all_reduce_messages(topology.n_nodes()) * state;
    result.bytes = (p - M) * (state + output) + result.bytes_between_nodes;
  } else if (algorithm == "ring-state") {
    result.messages = p * (p - 1);
    result.bytes = p * (p - 1) * state;
    result.bytes_between_nodes = (p - 1) * ring_borders(topology) * state;
  } else if (algorithm == "ring") {
    result.messages = 2 * p * (p - 1);
    result.bytes = (p - 1) * cache;
    result.bytes_between_nodes = (p - 1) * ring_borders(topology) * cache / p;
  }

  // The paper's own formulas; its keys and values have as many heads as the queries, ours may have fewer.
  const CostShape cost{shape.batch, 0, shape.heads * shape.value_dim * shape.n_queries, shape.heads * shape.n_queries, p};
  const double kv_elements = static_cast<double>(shape.n_keys * shape.batch * shape.kv_heads * (shape.head_dim + shape.value_dim)) / static_cast<double>(p);
  const bool ring = algorithm == "ring";
  result.peak_elements = ring ? 2 * kv_elements + static_cast<double>(ring_peak_memory(cost)) : kv_elements + static_cast<double>(tree_peak_memory(cost));
  if (algorithm == "paper") result.paper_bytes = 4.0 * static_cast<double>(p) * tree_volume(cost);
  if (ring) result.paper_bytes = static_cast<double>(cache) * static_cast<double>(p - 1);
  return result;
}

}  // namespace tree_attn
