// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Step 5 of the ladder: the last block to arrive merges the splits, in the same launch (Alg. 3).
///
/// What changed: no second kernel. A counter a query tells the last of its blocks, which joins the forests of all.
/// Bytes: the same. Time: one launch less, 1 to 3 us, which is a tenth of a decode over 8k keys.
/// Measured, H200, BF16, 16 heads: 0.95 of the time of step 4 at 8k keys launched by itself, 0.98 in a graph; 0.61 of the
/// rate of a kernel that only reads at 64k, as step 4.
#include "gpu/ladder/ladder.hpp"
#include "gpu/parts/join.cuh"
#include "gpu/parts/key_accumulator.cuh"
#include "gpu/parts/last_block.cuh"
#include "gpu/parts/splits.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

/// Grid: splits, rows. @param forests see SplitWorkspace @param counters one a row
template <IsSubWarp SubWarp>
__global__ void __launch_bounds__(kSplitThreads, 1)
    last_block(DecodeParams params, DeviceOutput output, SplitWorkspace forests, unsigned* counters) {
  const std::int64_t row = blockIdx.y, kv_head = row / params.group, r = row % params.group;
  const auto self = WorkerThread::of<SubWarp>(static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  const int split = static_cast<int>(blockIdx.x);
  const KeyRange whole = params.padded(kv_head), range = split_range(whole, split, forests.n_splits);
  Arena arena;
  const Shared<int> is_last = arena.take<int>(1);
  const Scratch scratch{arena.take<float>(kScratchBytes / sizeof(float)), kScratchBytes / sizeof(float)};

  // Accumulate, and join the sub-warps of the block.
  accumulate_keys<SubWarp>(params, kv_head, r, split_range(range, self.worker, self.n_workers),
                           forests.of_worker(row, split, self.worker));
  __syncthreads();
  join_splits<SubWarp>(
      scratch, forests.of_worker(row, split, 0), forests.n_worker, range, self.n_workers, self,
      [&](int, const auto& forest) { store_forest<SubWarp>(forest, forests.of_split(row, split), self.lane); });

  // The last block joins the splits.
  if (!arrives_last(counters + row, gridDim.x, is_last)) return;
  join_splits<SubWarp>(scratch, forests.of_split(row, 0), forests.n_split, whole, forests.n_splits, self,
                       [&](int slot, const auto& forest) {
                         write_output<SubWarp>(params, output, kv_head, r, slot, forest, whole, self.lane);
                       });
}

LaunchPlan plan(const DecodeParams& params, DType dtype, const LaunchOptions& options) {
  LaunchPlan plan = plan_splits(params, dtype, options);
  plan.shared_bytes = 128 + kScratchBytes;
  return plan;
}

void run(const DecodeParams& params, DType dtype, const DeviceOutput& output, const LaunchPlan& plan,
         const Workspace& workspace, Stream stream) {
  const Launch config{.grid = {static_cast<unsigned>(plan.n_splits), static_cast<unsigned>(params.n_rows())},
                      .block = {static_cast<unsigned>(plan.n_threads)},
                      .shared_bytes = plan.shared_bytes};
  with_sub_warp(params, dtype, [&](auto sub_warp) {
    using SubWarp = decltype(sub_warp);
    launch(last_block<SubWarp>, config, stream, params, output, SplitWorkspace::of<SubWarp>(params, plan, workspace.floats),
           workspace.counters);
  });
}

}  // namespace

const LadderStep kLastBlock{.name = "last-block",
                            .brief = "the last block merges, one launch",
                            .n_additions = tree_additions,
                            .accepts = accepts_aligned_rows,
                            .plan = plan,
                            .run = run};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
