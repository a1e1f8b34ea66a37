// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Step 6 of the ladder: asynchronous copies in a ring of stages (section 6.3: what decoding waits for is memory).
///
/// What changed: keys and values go from global to shared memory behind the arithmetic's back, two groups of eight ahead of
/// it. Every lane copies what it will read itself, so the ring has no barrier at all. Rows need not be aligned any more, nor
/// whole multiples of 16 bytes: what is not is copied number by number.
/// Bytes: the same. Time: 128 KiB a multiprocessor are on their way at all times, where step 5 waits for keys, works, waits
/// for values, works.
/// Measured, H200, BF16, 16 heads: 0.53, 0.72 and 0.82 of the rate of a kernel that only reads, at 8k, 64k and 1M keys; 0.82 for
/// F32 at 64k.
#include "gpu/ladder/ladder.hpp"
#include "gpu/parts/forests.cuh"
#include "gpu/parts/last_block.cuh"
#include "gpu/parts/ring.cuh"
#include "gpu/parts/splits.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

constexpr int kStages = 3;

/// Wider rows take more of the ring, so fewer threads.
template <IsSubWarp Team>
inline constexpr int kThreads = kSplitThreads / Team::kChunks;

/// Grid: splits, rows. @param forests see SplitWorkspace @param counters one a row
template <IsSubWarp Team>
__global__ void __launch_bounds__(kThreads<Team>, 1) async(DeviceProblem problem, DeviceOutput output, bool aligned,
                                                           SplitWorkspace forests, unsigned* counters) {
  const std::int64_t row = blockIdx.y, line = row / problem.group, r = row % problem.group;
  const auto self = WorkerThread::of<Team>(static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  const int at = static_cast<int>(blockIdx.x);
  const Run whole = problem.padded(line), run = part_of(whole, at, forests.n_splits);
  Arena arena;
  const Shared<int> told = arena.take<int>(1);
  constexpr int kFloats = static_cast<int>(LaneRing<Team>::n_bytes(kStages, kThreads<Team>) / sizeof(float));
  const Shared<Bytes16> ring = arena.take<Bytes16>(kFloats / 4);
  const Scratch scratch{shared_as<float>(ring), kFloats};

  // Climb, and join the teams of the block.
  climb_over_ring<Team, kStages>(problem, line, r, part_of(run, self.worker, self.n_workers), forests.of_worker(row, at, self.worker), aligned,
                                 LaneRing<Team>(ring));
  __syncthreads();
  join<Team>(scratch, forests.of_worker(row, at, 0), forests.n_worker, run, self.n_workers, self,
             [&](int, const auto& forest) { keep<Team>(forest, forests.of_split(row, at), self.lane); });

  // The last block joins the splits.
  if (!arrives_last(counters + row, gridDim.x, told)) return;
  join<Team>(scratch, forests.of_split(row, 0), forests.n_split, whole, forests.n_splits, self,
             [&](int slot, const auto& forest) { deliver<Team>(problem, output, line, r, slot, forest, whole, self.lane); });
}

Plan plan(const DeviceProblem& problem, Storage storage, const PlanOptions& options) {
  Plan plan;
  with_team(problem, storage, [&](auto team) {
    using Team = decltype(team);
    plan = plan_splits(problem, storage, {options.n_splits, kThreads<Team>});
    plan.n_stages = kStages;
    plan.shared_bytes = 128 + LaneRing<Team>::n_bytes(kStages, plan.n_threads);
  });
  return plan;
}

void run(const DeviceProblem& problem, Storage storage, const DeviceOutput& output, const Plan& plan, const Workspace& workspace,
         Stream stream) {
  const Launch how{.grid = {static_cast<unsigned>(plan.n_splits), static_cast<unsigned>(problem.n_rows())},
                   .block = {static_cast<unsigned>(plan.n_threads)},
                   .shared_bytes = plan.shared_bytes};
  with_team(problem, storage, [&](auto team) {
    using Team = decltype(team);
    launch(async<Team>, how, stream, problem, output, starts_aligned(problem, storage),
           SplitWorkspace::of<Team>(problem, plan, workspace.floats), workspace.counters);
  });
}

}  // namespace

const LadderStep kAsync{.name = "async", .brief = "asynchronous copies in a ring of stages", .n_additions = tree_additions, .accepts = accepts_any_rows, .plan = plan, .run = run};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
