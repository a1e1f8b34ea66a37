// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Step 6 of the ladder: asynchronous copies in a ring of stages (section 6.3: what decoding waits for is memory).
///
/// What changed: keys and values go from global to shared memory behind the arithmetic's back, two steps of eight ahead of
/// it. Every lane copies what it will read itself, so the ring has no barrier at all. Rows need not be aligned any more, nor
/// whole multiples of 16 bytes: what is not is copied number by number.
/// Bytes: the same. Time: 128 KiB a multiprocessor are on their way at all times, where step 5 waits for keys, works, waits
/// for values, works.
/// Measured, H200, BF16, 16 heads: 0.53, 0.72 and 0.82 of the rate of a kernel that only reads, at 8k, 64k and 1M keys; 0.82
/// for F32 at 64k.
#include "gpu/ladder/ladder.hpp"
#include "gpu/parts/join.cuh"
#include "gpu/parts/lane_ring.cuh"
#include "gpu/parts/last_block.cuh"
#include "gpu/parts/splits.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

constexpr int kStages = 3;

/// Wider rows take more of the ring, so fewer threads.
template <IsSubWarp SubWarp>
inline constexpr int kThreads = kSplitThreads / SubWarp::kVectorsPerLane;

/// Grid: splits, rows. @param forests see SplitWorkspace @param counters one a row
template <IsSubWarp SubWarp>
__global__ void __launch_bounds__(kThreads<SubWarp>, 1)
    async(DecodeParams params, DeviceOutput output, bool aligned, SplitWorkspace forests, unsigned* counters) {
  const std::int64_t row = blockIdx.y, kv_head = row / params.group, r = row % params.group;
  const auto self = WorkerThread::of<SubWarp>(static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  const int split = static_cast<int>(blockIdx.x);
  const KeyRange whole = params.padded(kv_head), range = split_range(whole, split, forests.n_splits);
  Arena arena;
  const Shared<int> is_last = arena.take<int>(1);
  constexpr int kFloats = static_cast<int>(LaneRing<SubWarp>::n_bytes(kStages, kThreads<SubWarp>) / sizeof(float));
  const Shared<Bytes16> ring = arena.take<Bytes16>(kFloats / 4);
  const Scratch scratch{shared_as<float>(ring), kFloats};

  // Accumulate, and join the sub-warps of the block.
  accumulate_keys_async<SubWarp, kStages>(params, kv_head, r, split_range(range, self.worker, self.n_workers),
                                          forests.of_worker(row, split, self.worker), aligned, LaneRing<SubWarp>(ring));
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
  LaunchPlan plan;
  with_sub_warp(params, dtype, [&](auto sub_warp) {
    using SubWarp = decltype(sub_warp);
    plan = plan_splits(params, dtype, {options.n_splits, kThreads<SubWarp>});
    plan.n_stages = kStages;
    plan.shared_bytes = 128 + LaneRing<SubWarp>::n_bytes(kStages, plan.n_threads);
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
    launch(async<SubWarp>, config, stream, params, output, starts_aligned(params, dtype),
           SplitWorkspace::of<SubWarp>(params, plan, workspace.floats), workspace.counters);
  });
}

}  // namespace

const LadderStep kAsync{.name = "async",
                        .brief = "asynchronous copies in a ring of stages",
                        .n_additions = tree_additions,
                        .accepts = accepts_any_rows,
                        .plan = plan,
                        .run = run};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
