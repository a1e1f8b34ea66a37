// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Step 8 of the ladder: bulk copies by a warp of its own, on compute capability 9 (section 6.3).
///
/// What changed: a warp that does nothing else starts the copies, one for eight rows where those are neighbours, and the
/// copies tell an mbarrier when they have come. The teams wait, read and climb; of addresses in global memory they know
/// nothing any more.
/// Bytes: the same. In flight as in step 6 two stages of three at least, 128 KiB a multiprocessor, and the third from the
/// moment its team has read it. Time: for eight keys every lane of step 6 started 16 copies, each with an address and a size,
/// about a tenth of its instructions; here a team of any width costs two copies, by a lane that is not its own. That is worth
/// something where instructions are short and bytes are not: 16-bit numbers, and queries that share keys and find them in L2.
/// Measured, H200, BF16, 16 heads: 0.50, 0.70 and 0.84 of the rate of a kernel that only reads, at 8k, 64k and 1M keys. That is step 6
/// again: once the arithmetic was short, the copies were not what took the time.
#include "gpu/ladder/ladder.hpp"
#include "gpu/parts/bulk_ring.cuh"
#include "gpu/parts/forests.cuh"
#include "gpu/parts/last_block.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

/// Grid: splits, rows. @param forests see SplitWorkspace @param counters one a row
template <IsSubWarp Team>
__global__ void __launch_bounds__(BulkShape<Team>::kThreads, 1) bulk(DeviceProblem problem, DeviceOutput output,
                                                                     SplitWorkspace forests, unsigned* counters) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using Shape = BulkShape<Team>;
  const std::int64_t row = blockIdx.y, line = row / problem.group, r = row % problem.group;
  const int split = static_cast<int>(blockIdx.x);
  const auto self = WorkerThread::of<Team>(static_cast<int>(threadIdx.x), Shape::kThreads);  // the producer's lanes among them
  const Run whole = problem.padded(line), run = part_of(whole, split, forests.n_splits);
  Arena arena;
  const Shared<float> ring = arena.take<float>(Shape::kRing);
  const Shared<Barrier> barriers = arena.take<Barrier>(Shape::kBarriers);
  const Shared<int> told = arena.take<int>(1);
  const Scratch scratch{ring, Shape::kRing};

  // Climb, and join the teams of the block, where the ring was.
  BulkRing<Team>(ring, barriers).climb(problem, line, r, run, forests.of_worker(row, split, 0), forests.n_worker);
  __syncthreads();
  join<Team>(scratch, forests.of_worker(row, split, 0), forests.n_worker, run, Shape::kTeams, self,
             [&](int, const auto& forest) { keep<Team>(forest, forests.of_split(row, split), self.lane); });

  // The last block joins the splits.
  if (!arrives_last(counters + row, gridDim.x, told)) return;
  join<Team>(scratch, forests.of_split(row, 0), forests.n_split, whole, forests.n_splits, self,
             [&](int slot, const auto& forest) { deliver<Team>(problem, output, line, r, slot, forest, whole, self.lane); });
#endif
}

Plan plan(const DeviceProblem& problem, Storage storage, const PlanOptions& options) {
  Plan plan;
  with_team(problem, storage, [&](auto team) {
    using Shape = BulkShape<decltype(team)>;
    plan = plan_splits(problem, storage, {options.n_splits, Shape::kTeamThreads});
    plan.n_threads = Shape::kThreads;
    plan.n_stages = Shape::kStages;
    plan.shared_bytes = Shape::kBytes + 128;
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
    Plan of_teams = plan;
    of_teams.n_threads = BulkShape<Team>::kTeamThreads;  // The producer has no forest.
    launch(bulk<Team>, how, stream, problem, output, SplitWorkspace::of<Team>(problem, of_teams, workspace.floats),
           workspace.counters);
  });
}

}  // namespace

const LadderStep kBulk{.name = "bulk", .brief = "bulk copies by a producer warp", .min_capability = 9, .n_additions = tree_additions, .accepts = accepts_aligned_rows, .plan = plan, .run = run};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
