// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How steps 4 to 9 cut the keys over blocks, and where the forests of the splits lie.
#pragma once

#include "gpu/parts/sub_warps.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Threads of a block of these steps.
inline constexpr int kSplitThreads = 256;

/// Shared memory in which a block joins, where no ring leaves more.
inline constexpr std::size_t kScratchBytes = 64 * 1024;

/// Forests in the workspace: of every split of every query tile, and of every worker of every split. A query tile is the
/// rows that one worker serves, on all keys of their kv head.
struct SplitWorkspace {
  float* floats = nullptr;
  std::int64_t n_worker = 0, n_split = 0;  ///< floats of one forest, of which there is one a slot
  int n_workers = 1, n_splits = 1, n_slots = 1;

  /// That of a plan; without memory, for its size.
  template <IsWorker Worker>
  static SplitWorkspace of(const DecodeParams& params, const LaunchPlan& plan, float* floats) {
    const int n = n_workers_of<Worker>(plan.n_threads);
    return {floats,
            forest_floats<Worker>(params, std::int64_t{plan.n_splits} * n),
            forest_floats<Worker>(params, plan.n_splits),
            n,
            plan.n_splits,
            Worker::kSlots};
  }
  /// Floats of one query tile, and where its forests lie: those of the splits, then worker by worker.
  TREE_ATTN_HOST_DEVICE std::int64_t n_floats() const { return n_splits * (n_split + n_workers * n_worker) * n_slots; }
  TREE_ATTN_HOST_DEVICE float* of_split(std::int64_t query_tile, int split) const {
    return floats + query_tile * n_floats() + split * n_split * n_slots;
  }
  TREE_ATTN_HOST_DEVICE float* of_worker(std::int64_t query_tile, int split, int worker) const {
    return floats + query_tile * n_floats() + (n_splits * n_split + (split * n_workers + worker) * n_worker) * n_slots;
  }
};

/// Query tiles of a problem: every kRows queries of a group.
template <IsWorker Worker>
std::int64_t n_query_tiles(const DecodeParams& params) {
  return params.batch_kv_heads() * ((params.group + Worker::kRows - 1) / Worker::kRows);
}

/// As many splits as fill the device once, but no more than leave every worker a leaf.
int choose_splits(const DecodeParams& params, std::int64_t n_query_tiles, int n_workers);

/// The plan of a step with splits: what was asked for, else what fills the device.
LaunchPlan plan_splits(const DecodeParams& params, DType dtype, const LaunchOptions& options);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
