// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How steps 4 to 9 cut the keys over blocks, and where the forests of the pieces lie.
#pragma once

#include "gpu/parts/teams.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Threads of a block of these steps.
inline constexpr int kSplitThreads = 256;

/// Shared memory in which a block joins, where no ring leaves more.
inline constexpr std::size_t kScratchBytes = 64 * 1024;

/// Forests in the workspace: of every split of every strip, and of every worker of every split. A strip is the rows that one
/// worker serves, on all keys of their line.
struct SplitWorkspace {
  float* floats = nullptr;
  std::int64_t n_worker = 0, n_split = 0;  ///< floats of one forest, of which there is one a slot
  int n_workers = 1, n_splits = 1, n_slots = 1;

  /// That of a plan; without memory, for its size.
  template <IsWorker Worker>
  static SplitWorkspace of(const DeviceProblem& problem, const Plan& plan, float* floats) {
    const int n = n_workers_of<Worker>(plan.n_threads);
    return {floats, forest_floats<Worker>(problem, std::int64_t{plan.n_splits} * n), forest_floats<Worker>(problem, plan.n_splits),
            n, plan.n_splits, Worker::kSlots};
  }
  /// Floats of one strip, and where its forests lie: those of the splits, then worker by worker.
  TREE_ATTN_HOST_DEVICE std::int64_t n_floats() const { return n_splits * (n_split + n_workers * n_worker) * n_slots; }
  TREE_ATTN_HOST_DEVICE float* of_split(std::int64_t strip, int split) const {
    return floats + strip * n_floats() + split * n_split * n_slots;
  }
  TREE_ATTN_HOST_DEVICE float* of_worker(std::int64_t strip, int split, int worker) const {
    return floats + strip * n_floats() + (n_splits * n_split + (split * n_workers + worker) * n_worker) * n_slots;
  }
};

/// Strips of a problem: every kRows queries of a group.
template <IsWorker Worker>
std::int64_t n_strips(const DeviceProblem& problem) {
  return problem.n_lines() * ((problem.group + Worker::kRows - 1) / Worker::kRows);
}

/// As many splits as fill the device once, but no more than leave every worker a leaf.
int choose_splits(const DeviceProblem& problem, std::int64_t n_strips, int n_workers);

/// The plan of a step with splits: what was asked for, else what fills the device.
Plan plan_splits(const DeviceProblem& problem, Storage storage, const PlanOptions& options);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
