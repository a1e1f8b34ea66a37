// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Step 4 of the ladder: the keys of a query are split over blocks, and a second kernel merges (section 5, Alg. 3).
///
/// What changed: a grid of splits times queries. Each block leaves the forest of its split in the workspace; a second launch
/// joins the forests of each query. This is the tree over devices, inside one.
/// Bytes: the same, and a few states a split. Time: as many blocks as the device can hold, whatever the number of queries;
/// for one more launch, 1 to 3 us. Measured, H200, BF16, 16 heads: 0.47, 0.60 and 0.68 of the rate of a kernel that only
/// reads, at 8k, 64k and 1M keys.
#include "gpu/ladder/ladder.hpp"
#include "gpu/parts/join.cuh"
#include "gpu/parts/key_accumulator.cuh"
#include "gpu/parts/splits.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

/// Grid: splits, rows. @param forests see SplitWorkspace
template <IsSubWarp SubWarp>
__global__ void __launch_bounds__(kSplitThreads, 1) split(DecodeParams params, SplitWorkspace forests) {
  const std::int64_t row = blockIdx.y, kv_head = row / params.group, r = row % params.group;
  const auto self = WorkerThread::of<SubWarp>(static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  const int split = static_cast<int>(blockIdx.x);
  const KeyRange range = split_range(params.padded(kv_head), split, forests.n_splits);
  Arena arena;
  const Scratch scratch{arena.take<float>(kScratchBytes / sizeof(float)), kScratchBytes / sizeof(float)};

  accumulate_keys<SubWarp>(params, kv_head, r, split_range(range, self.worker, self.n_workers),
                           forests.of_worker(row, split, self.worker));
  __syncthreads();
  join_splits<SubWarp>(
      scratch, forests.of_worker(row, split, 0), forests.n_worker, range, self.n_workers, self,
      [&](int, const auto& forest) { store_forest<SubWarp>(forest, forests.of_split(row, split), self.lane); });
}

/// One block a row.
template <IsSubWarp SubWarp>
__global__ void __launch_bounds__(kSplitThreads)
    split_merge(DecodeParams params, DeviceOutput output, SplitWorkspace forests) {
  const std::int64_t row = blockIdx.x, kv_head = row / params.group, r = row % params.group;
  const auto self = WorkerThread::of<SubWarp>(static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  const KeyRange whole = params.padded(kv_head);
  Arena arena;
  const Scratch scratch{arena.take<float>(kScratchBytes / sizeof(float)), kScratchBytes / sizeof(float)};
  join_splits<SubWarp>(scratch, forests.of_split(row, 0), forests.n_split, whole, forests.n_splits, self,
                       [&](int slot, const auto& forest) {
                         write_output<SubWarp>(params, output, kv_head, r, slot, forest, whole, self.lane);
                       });
}

LaunchPlan plan(const DecodeParams& params, DType dtype, const LaunchOptions& options) {
  LaunchPlan plan = plan_splits(params, dtype, options);
  plan.shared_bytes = kScratchBytes;
  return plan;
}

void run(const DecodeParams& params, DType dtype, const DeviceOutput& output, const LaunchPlan& plan,
         const Workspace& workspace, Stream stream) {
  const auto n_rows = static_cast<unsigned>(params.n_rows()), n_threads = static_cast<unsigned>(plan.n_threads);
  const Launch splits{
      .grid = {static_cast<unsigned>(plan.n_splits), n_rows}, .block = {n_threads}, .shared_bytes = plan.shared_bytes};
  const Launch rows{.grid = {n_rows}, .block = {n_threads}, .shared_bytes = plan.shared_bytes, .continues = true};
  with_sub_warp(params, dtype, [&](auto sub_warp) {
    using SubWarp = decltype(sub_warp);
    const auto forests = SplitWorkspace::of<SubWarp>(params, plan, workspace.floats);
    launch(split<SubWarp>, splits, stream, params, forests);
    launch(split_merge<SubWarp>, rows, stream, params, output, forests);
  });
}

}  // namespace

const LadderStep kSplit{.name = "split",
                        .brief = "keys split over blocks, a second kernel merges",
                        .n_additions = tree_additions,
                        .accepts = accepts_aligned_rows,
                        .plan = plan,
                        .run = run};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
