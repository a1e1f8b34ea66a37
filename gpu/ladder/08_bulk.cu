// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Step 8 of the ladder: bulk copies by a warp of its own, on compute capability 9 (section 6.3).
///
/// What changed: a warp that does nothing else starts the copies, one for eight rows where those are neighbours, and the
/// copies tell an mbarrier when they have come. The sub-warps wait, read and accumulate; of addresses in global memory they
/// know nothing any more. Bytes: the same. In flight as in step 6 two stages of three at least, 128 KiB a multiprocessor,
/// and the third from the moment its sub-warp has read it. Time: for eight keys every lane of step 6 started 16 copies, each
/// with an address and a size, about a tenth of its instructions; here a sub-warp of any width costs two copies, by a lane
/// that is not its own. That is worth something where instructions are short and bytes are not: 16-bit numbers, and queries
/// that share keys and find them in L2. Measured, H200, BF16, 16 heads: 0.50, 0.70 and 0.84 of the rate of a kernel that
/// only reads, at 8k, 64k and 1M keys. That is step 6 again: once the arithmetic was short, the copies were not what took
/// the time.
#include "gpu/ladder/ladder.hpp"
#include "gpu/parts/bulk_ring.cuh"
#include "gpu/parts/join.cuh"
#include "gpu/parts/last_block.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

/// Grid: splits, rows. @param forests see SplitWorkspace @param counters one a row
template <IsSubWarp SubWarp>
__global__ void __launch_bounds__(BulkShape<SubWarp>::kThreads, 1)
    bulk(DecodeParams params, DeviceOutput output, SplitWorkspace forests, unsigned* counters) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using Shape = BulkShape<SubWarp>;
  const std::int64_t row = blockIdx.y, kv_head = row / params.group, r = row % params.group;
  const int split = static_cast<int>(blockIdx.x);
  const auto self =
      WorkerThread::of<SubWarp>(static_cast<int>(threadIdx.x), Shape::kThreads);  // the producer's lanes among them
  const KeyRange whole = params.padded(kv_head), range = split_range(whole, split, forests.n_splits);
  Arena arena;
  const Shared<float> ring = arena.take<float>(Shape::kRing);
  const Shared<Barrier> barriers = arena.take<Barrier>(Shape::kBarriers);
  const Shared<int> is_last = arena.take<int>(1);
  const Scratch scratch{ring, Shape::kRing};

  // Accumulate, and join the sub-warps of the block, where the ring was.
  BulkRing<SubWarp>(ring, barriers)
      .accumulate(params, kv_head, r, range, forests.of_worker(row, split, 0), forests.n_worker);
  __syncthreads();
  join_splits<SubWarp>(
      scratch, forests.of_worker(row, split, 0), forests.n_worker, range, Shape::kSubWarps, self,
      [&](int, const auto& forest) { store_forest<SubWarp>(forest, forests.of_split(row, split), self.lane); });

  // The last block joins the splits.
  if (!arrives_last(counters + row, gridDim.x, is_last)) return;
  join_splits<SubWarp>(scratch, forests.of_split(row, 0), forests.n_split, whole, forests.n_splits, self,
                       [&](int slot, const auto& forest) {
                         write_output<SubWarp>(params, output, kv_head, r, slot, forest, whole, self.lane);
                       });
#endif
}

LaunchPlan plan(const DecodeParams& params, DType dtype, const LaunchOptions& options) {
  LaunchPlan plan;
  with_sub_warp(params, dtype, [&](auto sub_warp) {
    using Shape = BulkShape<decltype(sub_warp)>;
    plan = plan_splits(params, dtype, {options.n_splits, Shape::kSubWarpThreads});
    plan.n_threads = Shape::kThreads;
    plan.n_stages = Shape::kStages;
    plan.shared_bytes = Shape::kBytes + 128;
  });
  return plan;
}

void run(const DecodeParams& params, DType dtype, const DeviceOutput& output, const LaunchPlan& plan,
         const Workspace& workspace, Stream stream) {
  const Launch config{.grid = {static_cast<unsigned>(plan.n_splits), static_cast<unsigned>(params.n_rows())},
                      .block = {static_cast<unsigned>(plan.n_threads)},
                      .shared_bytes = plan.shared_bytes};
  with_sub_warp(params, dtype, [&](auto sub_warp) {
    using SubWarp = decltype(sub_warp);
    LaunchPlan of_sub_warps = plan;
    of_sub_warps.n_threads = BulkShape<SubWarp>::kSubWarpThreads;  // The producer has no forest.
    launch(bulk<SubWarp>, config, stream, params, output,
           SplitWorkspace::of<SubWarp>(params, of_sub_warps, workspace.floats), workspace.counters);
  });
}

}  // namespace

const LadderStep kBulk{.name = "bulk",
                       .brief = "bulk copies by a producer warp",
                       .min_capability = 9,
                       .n_additions = tree_additions,
                       .accepts = accepts_aligned_rows,
                       .plan = plan,
                       .run = run};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
