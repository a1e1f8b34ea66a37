// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Number of keys of a rank that a step reads, by what its queries see (section 5).
#pragma once

#include "reference/data/workload.hpp"
#include "reference/state/owned_leaves.hpp"

#include <cstdint>

namespace tree_attn {

/// Keys of a range that are read of one sequence: those in use in the leaves that some query sees.
/// @param any what some query sees: SeenRule::of_any()
inline std::int64_t keys_read(const OwnedLeaves& leaves, const Seen& any) {
  const std::int64_t window = any.begin / kLeafKeys * kLeafKeys,
                     sinks = any.sinks >= window ? window : (any.sinks + kLeafKeys - 1) / kLeafKeys * kLeafKeys;
  return leaves.n_keys(any.end) - (leaves.n_keys(window) - leaves.n_keys(sinks));
}

/// Bytes of keys and values of a range that the last step of a workload reads, of all sequences.
inline std::int64_t bytes_read(const OwnedLeaves& leaves, const WorkloadShape& shape) {
  const std::int64_t of_key = shape.batch == 0 ? 0 : shape.bytes_per_position() / shape.batch;
  const auto of_sequence = [&](std::int64_t length) {
    return keys_read(leaves, shape.rule.of_any(length, shape.n_queries)) * of_key;
  };
  if (shape.lengths.empty()) return of_sequence(shape.n_keys) * shape.batch;
  std::int64_t bytes = 0;
  for (const std::int64_t length : shape.lengths) bytes += of_sequence(length);
  return bytes;
}

}  // namespace tree_attn
