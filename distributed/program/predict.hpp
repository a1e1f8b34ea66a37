// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Predicts what each algorithm sends and holds in a step: sums over the plans of all ranks (eq. (8)-(14)).
#pragma once

#include "distributed/exchange/decoder.hpp"
#include "distributed/exchange/step_time.hpp"
#include "distributed/transport/topology.hpp"
#include "reference/data/workload.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace tree_attn {

/// The cost of one decode step.
struct Prediction {
  std::int64_t messages = 0;             ///< sent by all ranks together
  std::int64_t bytes = 0;                ///< sent by all ranks together
  std::int64_t bytes_between_nodes = 0;  ///< of these, the bytes sent to another node
  std::int64_t collectives = 0;          ///< of the busiest rank
  std::int64_t merge_steps = 0;          ///< of the busiest rank
  std::int64_t rounds = 0;               ///< length of the longest chain of messages that wait for each other
  std::int64_t peak_elements = 0;        ///< keys, values, queries, states and outputs; largest over the ranks
  std::int64_t peak_kv_bytes = 0;        ///< of keys and values, where shards are dense; largest over the ranks
  std::int64_t peak_bytes = 0;           ///< the same elements in bytes: queries, states and outputs in F32
  std::optional<double> step_us;         ///< step_time() on the given cluster
};

/// Names why a step of these ranks is not predicted, in a few words; empty if it is. The arguments of predict().
std::string why_not_predicted(const Algorithm& algorithm, const WorkloadShape& shape, const Topology& topology,
                              std::span<const KeyRange> ranges, const PlanOptions& options = {});

/// Predicts a step exactly: the counters of the transports equal these values.
/// @param ranges positions of every rank, in the order of the topology
/// @param options of the plans
/// @param cluster where to predict the time of a step
/// @throws std::logic_error if the messages that ranks send and receive do not match, or if Algorithm::refusal names a
///   reason
/// @paper{eq_8, eq. (8)} @paper{eq_10, eq. (10)}
Prediction predict(const Algorithm& algorithm, const WorkloadShape& shape, const Topology& topology,
                   std::span<const KeyRange> ranges, const PlanOptions& options = {},
                   const std::optional<Cluster>& cluster = std::nullopt);

}  // namespace tree_attn
