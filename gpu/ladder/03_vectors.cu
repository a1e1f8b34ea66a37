// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Step 3 of the ladder: 16 bytes a lane, eight keys at once, sub-warps of lanes that merge (section 5).
///
/// What changed: a sub-warp of 8, 16 or 32 lanes reads a row, 16 bytes a lane, and takes eight keys at a time: their sums
/// share the exchanges, their states climb the canonical tree in registers. Every sub-warp of a block has a range of
/// positions of its own; in the end the block joins their forests. Bytes: the same, in a quarter to an eighth of the loads.
/// Time: eight rows are asked for before the first is used, and a block has 8 to 32 sub-warps where step 2 had one warp.
/// Still one block a query. Measured, H200, BF16, 16 heads: 0.10 of the rate of a kernel that only reads, at 8k, 64k and 1M
/// keys; 198 times as fast as step 2.
#include "gpu/ladder/ladder.hpp"
#include "gpu/parts/join.cuh"
#include "gpu/parts/key_accumulator.cuh"
#include "gpu/parts/splits.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

constexpr int kThreads = 256;

/// One block a query. @param forests those of the sub-warps of every block, n_floats each
template <IsSubWarp SubWarp>
__global__ void __launch_bounds__(kThreads, 1)
    vectors(DecodeParams params, DeviceOutput output, float* forests, std::int64_t n_floats) {
  const std::int64_t row = blockIdx.x, kv_head = row / params.group, r = row % params.group;
  const auto self = WorkerThread::of<SubWarp>(static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  const KeyRange whole = params.padded(kv_head);
  float* const of_sub_warps = forests + row * self.n_workers * n_floats;
  Arena arena;
  const Scratch scratch{arena.take<float>(kScratchBytes / sizeof(float)), kScratchBytes / sizeof(float)};

  // Every sub-warp accumulates its range; then the forests are joined, left to right.
  accumulate_keys<SubWarp>(params, kv_head, r, split_range(whole, self.worker, self.n_workers),
                           of_sub_warps + self.worker * n_floats);
  __syncthreads();
  join_splits<SubWarp>(scratch, of_sub_warps, n_floats, whole, self.n_workers, self, [&](int slot, const auto& forest) {
    write_output<SubWarp>(params, output, kv_head, r, slot, forest, whole, self.lane);
  });
}

LaunchPlan plan(const DecodeParams& params, DType dtype, const LaunchOptions&) {
  LaunchPlan plan{.n_threads = kThreads, .shared_bytes = kScratchBytes};
  with_sub_warp(params, dtype, [&](auto sub_warp) {
    using SubWarp = decltype(sub_warp);
    const int n = n_workers_of<SubWarp>(kThreads);
    plan.n_floats = params.n_rows() * n * forest_floats<SubWarp>(params, n);
  });
  return plan;
}

void run(const DecodeParams& params, DType dtype, const DeviceOutput& output, const LaunchPlan& plan,
         const Workspace& workspace, Stream stream) {
  const Launch config{.grid = {static_cast<unsigned>(params.n_rows())},
                      .block = {static_cast<unsigned>(plan.n_threads)},
                      .shared_bytes = plan.shared_bytes};
  with_sub_warp(params, dtype, [&](auto sub_warp) {
    using SubWarp = decltype(sub_warp);
    launch(vectors<SubWarp>, config, stream, params, output, workspace.floats,
           forest_floats<SubWarp>(params, n_workers_of<SubWarp>(plan.n_threads)));
  });
}

}  // namespace

const LadderStep kVectors{.name = "vectors",
                          .brief = "16 bytes a lane, sub-warps of lanes that merge",
                          .max_splits = 1,
                          .n_additions = tree_additions,
                          .accepts = accepts_aligned_rows,
                          .plan = plan,
                          .run = run};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
