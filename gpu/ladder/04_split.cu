// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Step 4 of the ladder: the keys of a query are split over blocks, and a second kernel merges (section 5, Alg. 3).
///
/// What changed: a grid of splits times queries. Each block leaves the forest of its split in the workspace; a second launch
/// joins the forests of each query. This is the tree over devices, inside one.
/// Bytes: the same, and a few states a split. Time: as many blocks as the device can hold, whatever the number of queries; for
/// one more launch, 1 to 3 us.
/// Measured, H200, BF16, 16 heads: 0.47, 0.60 and 0.68 of the rate of a kernel that only reads, at 8k, 64k and 1M keys.
#include "gpu/ladder/ladder.hpp"
#include "gpu/parts/climb.cuh"
#include "gpu/parts/forests.cuh"
#include "gpu/parts/splits.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

/// Grid: splits, rows. @param forests see SplitWorkspace
template <IsSubWarp Team>
__global__ void __launch_bounds__(kSplitThreads, 1) split(DeviceProblem problem, SplitWorkspace forests) {
  const std::int64_t row = blockIdx.y, line = row / problem.group, r = row % problem.group;
  const auto self = WorkerThread::of<Team>(static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  const int at = static_cast<int>(blockIdx.x);
  const Run run = part_of(problem.padded(line), at, forests.n_splits);
  Arena arena;
  const Scratch scratch{arena.take<float>(kScratchBytes / sizeof(float)), kScratchBytes / sizeof(float)};

  climb_over<Team>(problem, line, r, part_of(run, self.worker, self.n_workers), forests.of_worker(row, at, self.worker));
  __syncthreads();
  join<Team>(scratch, forests.of_worker(row, at, 0), forests.n_worker, run, self.n_workers, self,
             [&](int, const auto& forest) { keep<Team>(forest, forests.of_split(row, at), self.lane); });
}

/// One block a row.
template <IsSubWarp Team>
__global__ void __launch_bounds__(kSplitThreads) split_merge(DeviceProblem problem, DeviceOutput output, SplitWorkspace forests) {
  const std::int64_t row = blockIdx.x, line = row / problem.group, r = row % problem.group;
  const auto self = WorkerThread::of<Team>(static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  const Run whole = problem.padded(line);
  Arena arena;
  const Scratch scratch{arena.take<float>(kScratchBytes / sizeof(float)), kScratchBytes / sizeof(float)};
  join<Team>(scratch, forests.of_split(row, 0), forests.n_split, whole, forests.n_splits, self,
             [&](int slot, const auto& forest) { deliver<Team>(problem, output, line, r, slot, forest, whole, self.lane); });
}

Plan plan(const DeviceProblem& problem, Storage storage, const PlanOptions& options) {
  Plan plan = plan_splits(problem, storage, options);
  plan.shared_bytes = kScratchBytes;
  return plan;
}

void run(const DeviceProblem& problem, Storage storage, const DeviceOutput& output, const Plan& plan, const Workspace& workspace,
         Stream stream) {
  const auto n_rows = static_cast<unsigned>(problem.n_rows()), n_threads = static_cast<unsigned>(plan.n_threads);
  const Launch splits{.grid = {static_cast<unsigned>(plan.n_splits), n_rows}, .block = {n_threads}, .shared_bytes = plan.shared_bytes};
  const Launch rows{.grid = {n_rows}, .block = {n_threads}, .shared_bytes = plan.shared_bytes, .continues = true};
  with_team(problem, storage, [&](auto team) {
    using Team = decltype(team);
    const auto forests = SplitWorkspace::of<Team>(problem, plan, workspace.floats);
    launch(split<Team>, splits, stream, problem, forests);
    launch(split_merge<Team>, rows, stream, problem, output, forests);
  });
}

}  // namespace

const LadderStep kSplit{.name = "split", .brief = "keys split over blocks, a second kernel merges", .n_additions = tree_additions, .accepts = accepts_aligned_rows, .plan = plan, .run = run};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
