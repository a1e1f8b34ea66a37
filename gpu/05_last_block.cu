// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Step 5 of the ladder: the last block to arrive merges the splits, in the same launch (Alg. 3).
///
/// What changed: no second kernel. A counter a query tells the last of its blocks, which joins the forests of all.
/// Bytes: the same. Time: one launch less, 1 to 3 us, which is a tenth of a decode over 8k keys.
/// Measured: not yet.
#include "gpu/climb.cuh"
#include "gpu/forests.cuh"
#include "gpu/last_block.cuh"
#include "gpu/splits.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

/// Grid: splits, rows. @param forests see SplitWorkspace @param counters one a row
template <class Team>
__global__ void __launch_bounds__(kSplitThreads, 1) last_block(DeviceProblem problem, DeviceOutput output, SplitWorkspace forests,
                                                               unsigned* counters) {
  const std::int64_t row = blockIdx.y, line = row / problem.group, r = row % problem.group;
  const int n_teams = static_cast<int>(blockDim.x) / Team::kLanes, team = static_cast<int>(threadIdx.x) / Team::kLanes;
  const int lane = static_cast<int>(threadIdx.x);  // of the first team
  const Run64 whole = problem.padded(line), run = part_of(whole, blockIdx.x, gridDim.x);
  Arena arena;
  const Shared<int> told = arena.take<int>(1);

  // Climb, and join the teams of the block.
  climb_over<Team>(problem, line, r, part_of(run, team, n_teams), forests.of_worker(row, blockIdx.x, team));
  __syncthreads();
  if (team == 0) {
    join<Team>(forests.of_split(row, blockIdx.x), forests.n_split, forests.of_worker(row, blockIdx.x, 0), forests.n_worker, run,
               n_teams, lane);
  }

  // The last block joins the splits.
  if (arrives_last(counters + row, gridDim.x, told) && team == 0) {
    float* const of_row = forests.of_strip(row);
    join<Team>(of_row, forests.n_strip, forests.of_split(row, 0), forests.n_split, whole, forests.n_splits, lane);
    deliver<Team>(problem, output, line, r, of_row, forests.n_strip, whole, lane);
  }
}

Plan plan(const DeviceProblem& problem, Storage storage, const PlanOptions& options) {
  Plan plan = plan_splits(problem, storage, options);
  plan.shared_bytes = 128;
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

const LadderStep kLastBlock{"last-block", "the last block merges, one launch", accepts_aligned_rows, plan, run};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
