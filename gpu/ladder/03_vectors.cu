// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Step 3 of the ladder: lanes share a row, and 64 keys are one leaf (section 5).
///
/// What changed: a sub-warp of 8, 16 or 32 lanes reads a row, 16 bytes per lane, and takes eight keys at a time, whose sums
/// share their exchanges. 64 keys make a leaf, one chain of fused multiply-adds under a shift that rises with the scores;
/// the canonical tree stands above leaves. Every sub-warp of a block has leaves of its own, and at the end the block joins
/// their forests. Bytes: the same, in a quarter to an eighth of the loads. Expected: eight rows are requested before the
/// first is used, and a block has 8 to 32 sub-warps where step 2 had one warp. Still one block per query. Measured: not yet
/// in this form.
#include "gpu/ladder/ladder.hpp"
#include "gpu/parts/join.cuh"
#include "gpu/parts/key_accumulator.cuh"
#include "gpu/parts/splits.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

constexpr int kThreads = 256;

/// One block per query. @param forests those of the sub-warps of every block, n_floats each
template <IsSubWarp SubWarp>
__global__ void __launch_bounds__(kThreads, 1)
    vectors(DecodeParams params, DeviceOutput output, float* forests, std::int64_t n_floats) {
  const std::int64_t row = blockIdx.x, kv_head = row / params.group, r = row % params.group;
  const int worker = worker_of<SubWarp>(threadIdx.x), n_workers = static_cast<int>(blockDim.x) / SubWarp::kLanes;
  const KeyRange whole = params.leaves(kv_head);
  float* const of_sub_warps = forests + row * n_workers * n_floats;
  Arena arena;
  const Scratch scratch{arena.take<float>(kScratchBytes / sizeof(float)), kScratchBytes / sizeof(float)};

  // Every sub-warp accumulates its range; then the forests are joined, left to right.
  const KeySteps<> steps(split_range(whole, worker, n_workers), params.in_use(kv_head));
  GlobalSource<SubWarp> rows(params, kv_head, steps.leaves());
  accumulate_keys<SubWarp>(params, kv_head, r, steps, of_sub_warps + worker * n_floats, rows);
  __syncthreads();
  join_splits<SubWarp>(scratch, of_sub_warps, n_floats, whole, n_workers, [&](const auto& column, const auto& roots) {
    write_output<SubWarp>(params, output, kv_head, r, column, roots, whole);
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
                          .brief = "lanes share a row, 64 keys are a leaf",
                          .max_splits = 1,
                          .keeps_states = true,
                          .n_additions = leaf_additions,
                          .refusal = accepts_aligned_rows,
                          .plan = plan,
                          .run = run};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
