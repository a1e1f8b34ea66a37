// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Step 5 of the ladder: the last block to arrive merges the splits, in the same launch (Alg. 3).
///
/// What changed: no second kernel. A counter a query tells the last of its blocks, which joins the forests of all.
/// Bytes: the same. Time: one launch less, 1 to 3 us, which is a tenth of a decode over 8k keys.
/// Measured, H200, BF16, 16 heads: 0.95 of the time of step 4 at 8k keys launched by itself, 0.98 in a graph; 0.61 of the rate of a
/// kernel that only reads at 64k, as step 4.
#include "gpu/ladder/ladder.hpp"
#include "gpu/parts/climb.cuh"
#include "gpu/parts/forests.cuh"
#include "gpu/parts/last_block.cuh"
#include "gpu/parts/splits.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

/// Grid: splits, rows. @param forests see SplitWorkspace @param counters one a row
template <IsSubWarp Team>
__global__ void __launch_bounds__(kSplitThreads, 1) last_block(DeviceProblem problem, DeviceOutput output, SplitWorkspace forests,
                                                               unsigned* counters) {
  const std::int64_t row = blockIdx.y, line = row / problem.group, r = row % problem.group;
  const auto self = WorkerThread::of<Team>(static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  const int at = static_cast<int>(blockIdx.x);
  const Run whole = problem.padded(line), run = part_of(whole, at, forests.n_splits);
  Arena arena;
  const Shared<int> told = arena.take<int>(1);
  const Scratch scratch{arena.take<float>(kScratchBytes / sizeof(float)), kScratchBytes / sizeof(float)};

  // Climb, and join the teams of the block.
  climb_over<Team>(problem, line, r, part_of(run, self.worker, self.n_workers), forests.of_worker(row, at, self.worker));
  __syncthreads();
  join<Team>(scratch, forests.of_worker(row, at, 0), forests.n_worker, run, self.n_workers, self,
             [&](int, const auto& forest) { keep<Team>(forest, forests.of_split(row, at), self.lane); });

  // The last block joins the splits.
  if (!arrives_last(counters + row, gridDim.x, told)) return;
  join<Team>(scratch, forests.of_split(row, 0), forests.n_split, whole, forests.n_splits, self,
             [&](int slot, const auto& forest) { deliver<Team>(problem, output, line, r, slot, forest, whole, self.lane); });
}

Plan plan(const DeviceProblem& problem, Storage storage, const PlanOptions& options) {
  Plan plan = plan_splits(problem, storage, options);
  plan.shared_bytes = 128 + kScratchBytes;
  return plan;
}

void run(const DeviceProblem& problem, Storage storage, const DeviceOutput& output, const Plan& plan, const Workspace& workspace,
         Stream stream) {
  const Launch how{.grid = {static_cast<unsigned>(plan.n_splits), static_cast<unsigned>(problem.n_rows())},
                   .block = {static_cast<unsigned>(plan.n_threads)},
                   .shared_bytes = plan.shared_bytes};
  with_team(problem, storage, [&](auto team) {
    using Team = decltype(team);
    launch(last_block<Team>, how, stream, problem, output, SplitWorkspace::of<Team>(problem, plan, workspace.floats),
           workspace.counters);
  });
}

}  // namespace

const LadderStep kLastBlock{.name = "last-block", .brief = "the last block merges, one launch", .n_additions = tree_additions, .accepts = accepts_aligned_rows, .plan = plan, .run = run};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
