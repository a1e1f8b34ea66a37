// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How keys are cut over blocks, the same number of splits for every query tile, and where their forests lie.
#pragma once

#include "gpu/parts/sub_warps.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// The rows of a query tile: its kv head, and its first row in the group of that.
struct QueryTile {
  std::int64_t kv_head, first_row;

  template <IsWorker Worker>
  __device__ __forceinline__ static QueryTile of(const DecodeParams& params, std::int64_t i) {
    const Count n_of_kv_head = (Count(params.group) - 1) / Worker::kRows + 1;
    return {Count(i) / n_of_kv_head, Count(i) % n_of_kv_head * Worker::kRows};
  }
};

/// Query tiles of a problem: every kRows queries of a group.
template <IsWorker Worker>
std::int64_t n_query_tiles(const DecodeParams& params) {
  return params.batch_kv_heads() * ((params.group + Worker::kRows - 1) / Worker::kRows);
}

/// Forests in the workspace: of every worker of every split of every query tile. A query tile is the rows that one worker
/// serves, on all keys of their kv head.
struct SplitWorkspace {
  float* floats = nullptr;
  Count n_worker = 0;  ///< floats of one forest, of which there is one a slot
  int n_workers = 1, n_splits = 1, n_slots = 1;

  /// That of n_splits blocks of n_workers per query tile; without memory, for its size.
  template <IsWorker Worker>
  static SplitWorkspace of(const DecodeParams& params, int n_splits, int n_workers, float* floats) {
    return {floats, Count(forest_floats<Worker>(params, std::int64_t{n_splits} * n_workers)), n_workers, n_splits,
            Worker::kSlots};
  }
  /// Floats of one query tile, and where its forests lie.
  std::int64_t n_floats() const { return std::int64_t{n_splits} * n_workers * n_worker * n_slots; }
  TREE_ATTN_HOST_DEVICE float* of_worker(Count query_tile, Count split, Count worker) const {
    const Count i = (query_tile * n_splits + split) * n_workers + worker;
    return floats + std::int64_t{i} * (n_worker * n_slots);
  }
};

/// As many splits as fill the device once, but no more than leave every worker a leaf.
inline int choose_splits(const DecodeParams& params, std::int64_t n_query_tiles, int n_workers) {
  const std::int64_t each = (leaves_of({params.begin, params.end}) + n_workers - 1) / n_workers;
  const std::int64_t fill = device().n_multiprocessors / std::max<std::int64_t>(1, n_query_tiles);
  return static_cast<int>(std::max<std::int64_t>(1, std::min(fill, each)));
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
