// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The sub-warp for a shape: how many lanes share a row.
#pragma once

#include "gpu/parts/launch_plan.hpp"
#include "gpu/parts/sub_warp.cuh"

#include <algorithm>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Calls f with the narrowest sub-warp that holds a row of max(d_h, d_v) elements: 8, 16 or 32 lanes of 16 bytes, then 32
/// lanes of 2 to 5 times 16. @pre tensor cores do not multiply the rows
template <class T, class F>
void with_sub_warp(const DecodeParams& params, const F& f) {
  constexpr int kLongest = kLongestRow * static_cast<int>(sizeof(T));
  const int n_bytes = std::max(params.d_h, params.d_v) * static_cast<int>(sizeof(T));
  if constexpr (DTypeTraits<T>::kUnit == KernelUnit::Scalar) {
    if (n_bytes <= 128) return f(SubWarp<T, 8, 1>{});
    if (n_bytes <= 256) return f(SubWarp<T, 16, 1>{});
    if (n_bytes <= 512) return f(SubWarp<T, 32, 1>{});
  }
  if (n_bytes <= 1024) return f(SubWarp<T, 32, 2>{});
  if constexpr (kLongest > 2048) {
    if (n_bytes <= 2048) return f(SubWarp<T, 32, 4>{});
  }
  f(SubWarp<T, 32, (kLongest + 511) / 512>{});
}
template <class F>
void with_sub_warp(const DecodeParams& params, DType dtype, const F& f) {
  with_type(dtype, [&](auto type) { with_sub_warp<decltype(type)>(params, f); });
}

/// Workers in a block, each with a range of its own.
template <IsWorker Worker>
constexpr int n_workers_of(int n_threads) {
  return n_threads / Worker::kLanes;
}

/// The most positions that one of n parts of the shard gets.
inline std::int64_t longest_part(const DecodeParams& params, std::int64_t n_parts) {
  return (leaves_of({params.begin, params.end}) + n_parts - 1) / n_parts * kLeafKeys;
}

/// Floats of the forest of one slot of a worker when the shard is cut into n parts.
template <IsWorker Worker>
std::int64_t forest_floats(const DecodeParams& params, std::int64_t n_parts) {
  return LaneForest<Worker::kElements, Worker::kLanes>::n_floats(longest_part(params, n_parts));
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
