// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Step 3 of the ladder: 16 bytes a lane, eight keys at once, teams of lanes that merge (section 5).
///
/// What changed: a team of 8, 16 or 32 lanes reads a row, 16 bytes a lane, and takes eight keys at a time: their sums share
/// the exchanges, their states climb the canonical tree in registers. Every team of a block has a run of positions of its own;
/// in the end the block joins their forests.
/// Bytes: the same, in a quarter to an eighth of the loads. Time: eight rows are asked for before the first is used, and a
/// block has 8 to 32 teams where step 2 had one warp. Still one block a query.
/// Measured, H200, BF16, 16 heads: 0.10 of the rate of a kernel that only reads, at 8k, 64k and 1M keys; 198 times as fast as step 2.
#include "gpu/ladder/ladder.hpp"
#include "gpu/parts/climb.cuh"
#include "gpu/parts/forests.cuh"
#include "gpu/parts/splits.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

constexpr int kThreads = 256;

/// One block a query. @param forests those of the teams of every block, n_floats each
template <IsSubWarp Team>
__global__ void __launch_bounds__(kThreads, 1) vectors(DeviceProblem problem, DeviceOutput output, float* forests, std::int64_t n_floats) {
  const std::int64_t row = blockIdx.x, line = row / problem.group, r = row % problem.group;
  const auto self = WorkerThread::of<Team>(static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  const Run whole = problem.padded(line);
  float* const of_teams = forests + row * self.n_workers * n_floats;
  Arena arena;
  const Scratch scratch{arena.take<float>(kScratchBytes / sizeof(float)), kScratchBytes / sizeof(float)};

  // Every team climbs over its run; then the forests are joined, left to right.
  climb_over<Team>(problem, line, r, part_of(whole, self.worker, self.n_workers), of_teams + self.worker * n_floats);
  __syncthreads();
  join<Team>(scratch, of_teams, n_floats, whole, self.n_workers, self,
             [&](int slot, const auto& forest) { deliver<Team>(problem, output, line, r, slot, forest, whole, self.lane); });
}

Plan plan(const DeviceProblem& problem, Storage storage, const PlanOptions&) {
  Plan plan{.n_threads = kThreads, .shared_bytes = kScratchBytes};
  with_team(problem, storage, [&](auto team) {
    using Team = decltype(team);
    const int n = n_workers_of<Team>(kThreads);
    plan.n_floats = problem.n_rows() * n * forest_floats<Team>(problem, n);
  });
  return plan;
}

void run(const DeviceProblem& problem, Storage storage, const DeviceOutput& output, const Plan& plan, const Workspace& workspace,
         Stream stream) {
  const Launch how{.grid = {static_cast<unsigned>(problem.n_rows())},
                   .block = {static_cast<unsigned>(plan.n_threads)},
                   .shared_bytes = plan.shared_bytes};
  with_team(problem, storage, [&](auto team) {
    using Team = decltype(team);
    launch(vectors<Team>, how, stream, problem, output, workspace.floats,
           forest_floats<Team>(problem, n_workers_of<Team>(plan.n_threads)));
  });
}

}  // namespace

const LadderStep kVectors{.name = "vectors", .brief = "16 bytes a lane, teams of lanes that merge", .max_splits = 1, .n_additions = tree_additions, .accepts = accepts_aligned_rows, .plan = plan, .run = run};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
