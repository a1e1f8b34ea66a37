// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The two launches of the library with stamps: when each warp begins and ends its walk, and when each block that
/// combines may read states, and has ended. A pipeline notes the time, and so does a kernel around combine_block() (section
/// 6).
#pragma once

#include "gpu/engine/equal_runs.cuh"

#include <cstdint>
#include <type_traits>

namespace tree_attn::cuda {

/// Words that a block notes. Times are nanoseconds of a clock that all blocks share; 0 is a time that never came.
struct BlockStamps {
  static constexpr int kWarps = 16;
  std::uint64_t multiprocessor = 0;
  /// Times of each warp: it has its memory and its first run, and starts copies next; it has walked over its last one.
  std::uint64_t started[kWarps] = {}, walked[kWarps] = {};
  /// Times of a block that combines: it has waited for the walks, and its rows are written.
  std::uint64_t waited = 0, done = 0;
};

__device__ __forceinline__ std::uint64_t multiprocessor() {
  std::uint32_t number;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
  return number;
}
/// The stamps of this block.
__device__ __forceinline__ BlockStamps& own_stamps(BlockStamps* stamps) {
  return stamps[static_cast<std::int64_t>(blockIdx.y) * gridDim.x + blockIdx.x];
}

template <IsPipeline Pipeline>
class StampedPipeline : public Pipeline {
 public:
  struct Arguments {
    typename Pipeline::Arguments own;
    BlockStamps* stamps;
  };
  static_assert(Pipeline::kThreads <= BlockStamps::kWarps * kWarp);
  static Arguments arguments(const typename Pipeline::Params& params, const LaunchPlan& plan) {
    return {Pipeline::arguments(params, plan), nullptr};
  }
  __device__ __forceinline__ StampedPipeline(Arena& arena, const Arguments& arguments)
      : Pipeline(arena, arguments.own), stamps_(arguments.stamps) {}
  __device__ __forceinline__ void walk(const typename Pipeline::Params& params, const UnitRun& run,
                                       const UnitMemory& memory) {
    const bool notes = threadIdx.x % kWarp == 0;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    if (notes && !has_started_) own_stamps(stamps_).started[warp] = nanoseconds();
    has_started_ = true;
    Pipeline::walk(params, run, memory);
    if (notes) own_stamps(stamps_).multiprocessor = multiprocessor(), own_stamps(stamps_).walked[warp] = nanoseconds();
  }

 private:
  BlockStamps* stamps_;
  bool has_started_ = false;
};

/// Notes the end of this block.
__device__ __forceinline__ void stamp_end(BlockStamps* stamps) {
  __syncthreads();
  if (threadIdx.x > 0) return;
  own_stamps(stamps).multiprocessor = multiprocessor();
  own_stamps(stamps).done = nanoseconds();
}

template <class Tile, class Params>
__global__ void __launch_bounds__(kMostCombining* kWarp, 2)
    stamped_combine(const __grid_constant__ Params params, const __grid_constant__ UnitMemory memory, DeviceOutput output,
                    BlockStamps* stamps) {
  combine_block<Tile>(params, memory, output, [stamps] {
    if (threadIdx.x == 0) own_stamps(stamps).waited = nanoseconds();
  });
  stamp_end(stamps);
}

/// Calls f with the pipeline that the library kernel has for a shape that is timed; others are not compiled again.
template <class F>
void with_timed_pipeline(const DecodeParams& params, DType dtype, const F& f) {
  const bool is_latent = params.d_h == 576 && params.d_v == 512 && dtype == DType::BF16;
  if (is_latent) return with_mma_pipeline<MmaTile<BFloat16, kLongestValue, 8, 4>>(params, f);
  if (params.d_h != 128 || params.d_v != 128) throw DeviceError("stamps are for rows of 128 elements, and latent rows");
  if (dtype == DType::F32) return f(std::type_identity<ScalarPipeline<ScalarWarp<float, 128>>>{});
  if (dtype != DType::BF16) throw DeviceError("stamps are for F32 and BF16");
  with_mma_pipeline<MmaTile<BFloat16, 128, 8>>(params, f);
}

/// Queues the launches of the step `equal-runs` with stamps. Its output has the same bits.
/// @param plan of that step @param[out] stamps [plan.n_blocks], then [rows * slices] of the launch that combines; those of
/// blocks without work are not written
/// @throws DeviceError for rows of other than 128 elements and latent rows, and types other than F32 and BF16
inline void run_stamped(const DecodeParams& params, DType dtype, const DeviceOutput& output, const LaunchPlan& plan,
                        const Workspace& workspace, BlockStamps* stamps, Stream stream) {
  with_timed_pipeline(params, dtype, [&](auto pipeline) {
    using Pipeline = StampedPipeline<typename decltype(pipeline)::type>;
    typename Pipeline::Arguments arguments = Pipeline::arguments(params, plan);
    arguments.stamps = stamps;
    const UnitMemory memory = unit_memory<Pipeline>(params, plan, true, workspace.floats);
    const Launch config{.grid = {static_cast<unsigned>(plan.n_blocks)},
                        .block = {static_cast<unsigned>(plan.n_threads)},
                        .shared_bytes = plan.shared_bytes,
                        .cluster = plan.cluster,
                        .overlaps = plan.overlaps};
    launch(decode_units<Pipeline>, config, stream, params, memory, arguments);
    using Tile = typename ReplacingTile<typename Pipeline::ThreadGroup>::Type;
    launch(stamped_combine<Tile, DecodeParams>, launch_of_combine(params, memory, plan, 1), stream, params, memory, output,
           stamps + plan.n_blocks);
  });
}

}  // namespace tree_attn::cuda
