// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The team for a shape: how many lanes share a row.
#pragma once

#include <algorithm>

#include "gpu/parts/plan.hpp"
#include "gpu/parts/team.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Calls f with the narrowest team that holds a row of max(d_h, d_v) numbers: 8, 16 or 32 lanes of 16 bytes, then 32 lanes of
/// 2 or 4 times 16.
template <class T, class F>
void with_team(const DeviceProblem& problem, const F& f) {
  const int n_bytes = std::max(problem.d_h, problem.d_v) * static_cast<int>(sizeof(T));
  if (n_bytes <= 128) return f(Team<T, 8, 1>{});
  if (n_bytes <= 256) return f(Team<T, 16, 1>{});
  if (n_bytes <= 512) return f(Team<T, 32, 1>{});
  if (n_bytes <= 1024) return f(Team<T, 32, 2>{});
  if constexpr (kLongestRow * sizeof(T) > 1024) return f(Team<T, 32, 4>{});
}
template <class F>
void with_team(const DeviceProblem& problem, Storage storage, const F& f) {
  with_type(storage, [&](auto type) { with_team<decltype(type)>(problem, f); });
}

/// Workers in a block, each with a run of its own.
template <IsWorker Worker>
constexpr int n_workers_of(int n_threads) { return n_threads / Worker::kLanes; }

/// The most positions that one of n parts of the shard gets.
inline std::int64_t longest_part(const DeviceProblem& problem, std::int64_t n_parts) {
  const std::int64_t n = (problem.end + kLeafKeys - 1) / kLeafKeys - problem.begin / kLeafKeys;
  return std::max<std::int64_t>(1, (n + n_parts - 1) / n_parts * kLeafKeys);
}

/// Floats of the forest of one slot of a worker when the shard is cut into n parts.
template <IsWorker Worker>
std::int64_t forest_floats(const DeviceProblem& problem, std::int64_t n_parts) {
  return Counter<Worker::kNumbers, Worker::kLanes>::n_floats(longest_part(problem, n_parts));
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
