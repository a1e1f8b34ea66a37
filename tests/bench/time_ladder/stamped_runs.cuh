// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Both kernels of the library with stamps: when each of their warps begins and ends its walk, and when each of their
/// blocks begins to join, writes, and has ended. A pipeline notes the time, and so does the epilogue (section 6).
#pragma once

#include "gpu/engine/equal_runs.cuh"
#include "gpu/engine/split.cuh"

#include <cstdint>
#include <type_traits>

namespace tree_attn::cuda {

/// Words that a block notes. Times are nanoseconds of a clock that all blocks share; 0 is a time that never came.
struct BlockStamps {
  static constexpr int kWarps = 8, kJoins = 14;
  std::uint64_t multiprocessor = 0;
  /// Times of each warp: it has its memory and its first work range, and starts copies next; it has walked over its last
  /// one.
  std::uint64_t started[kWarps] = {}, walked[kWarps] = {};
  /// Times at which a join of the last work range begins. First the block joins its thread groups, once for every tile of
  /// rows; then, if it is the last of those that share its query tile, their blocks likewise. The end of the block notes one
  /// more.
  std::uint64_t joins[kJoins] = {};
  std::uint64_t writing = 0;  ///< the last tile of rows is joined, and is written next
  std::uint64_t done = 0;     ///< all that the block shares in has been joined
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
  __device__ __forceinline__ void operator()(const typename Pipeline::Params& params, std::int64_t kv_head,
                                             std::int64_t first_row, KeyRange range, float* forests, std::int64_t n_forest) {
    const bool notes = threadIdx.x % kWarp == 0;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    if (notes && !has_started_) own_stamps(stamps_).started[warp] = nanoseconds();
    has_started_ = true, n_joins_ = 0;
    Pipeline::operator()(params, kv_head, first_row, range, forests, n_forest);
    if (notes) own_stamps(stamps_).walked[warp] = nanoseconds();
  }
  /// Called where a join begins.
  __device__ __forceinline__ Scratch scratch() const {
    if (threadIdx.x == 0 && n_joins_ < BlockStamps::kJoins) own_stamps(stamps_).joins[n_joins_] = nanoseconds();
    ++n_joins_;
    return Pipeline::scratch();
  }

 private:
  BlockStamps* stamps_;
  bool has_started_ = false;
  mutable int n_joins_ = 0;
};

/// Notes the end of this block.
__device__ __forceinline__ void stamp_end(BlockStamps* stamps) {
  __syncthreads();
  if (threadIdx.x > 0) return;
  own_stamps(stamps).multiprocessor = multiprocessor();
  own_stamps(stamps).done = nanoseconds();
}

struct StampedEpilogue : WriteEpilogue {
  BlockStamps* stamps;

  __device__ __forceinline__ const DeviceOutput& output() const {
    if (threadIdx.x == 0) own_stamps(stamps).writing = nanoseconds();
    return result;
  }
  template <IsThreadGroup ThreadGroup, class Params>
  __device__ __forceinline__ void block_done(const Params&, int, Scratch, Tiles) const {
    stamp_end(stamps);
  }
};

template <IsPipeline Pipeline>
__global__ void __launch_bounds__(Pipeline::kThreads, 1)
    stamped_runs(typename Pipeline::Params params, StampedEpilogue epilogue,
                 const __grid_constant__ typename Pipeline::Arguments arguments, EqualRunsWorkspace forests,
                 unsigned* counters) {
  equal_runs_block<Pipeline>(params, epilogue, arguments, forests, counters);
}

template <IsPipeline Pipeline>
__global__ void __launch_bounds__(Pipeline::kThreads, 1)
    stamped_short_end(DecodeParams params, DeviceOutput output,
                      const __grid_constant__ typename Pipeline::Arguments arguments, SplitWorkspace forests) {
  short_end_block<Pipeline>(params, output, arguments, forests);
  stamp_end(arguments.stamps);
}

/// Calls f with the pipeline that the library kernel has for a shape that is timed; others are not compiled again.
template <class F>
void with_timed_pipeline(const DecodeParams& params, DType dtype, const F& f) {
  const bool is_latent = params.d_h == 576 && params.d_v == 512 && dtype == DType::BF16;
  if (is_latent) return with_mma_pipeline<MmaTile<BFloat16, kLongestValue, 8, 4>>(f);
  if (params.d_h != 128 || params.d_v != 128) throw DeviceError("stamps are for rows of 128 elements, and latent rows");
  if (dtype == DType::F32) return f(std::type_identity<SubWarpPipeline<SubWarp<float, 32, 1>>>{});
  if (dtype != DType::BF16) throw DeviceError("stamps are for F32 and BF16");
  with_mma_pipeline<MmaTile<BFloat16, 128, 8>>(f);
}

/// Queues the step `equal-runs` or, if the plan has clusters, `short-end`, with stamps. Its output has the same bits.
/// @param plan of that step @param[out] stamps [blocks of the launch]; those of blocks without work are not written
/// @throws DeviceError for rows of other than 128 elements and latent rows, and types other than F32 and BF16
inline void run_stamped(const DecodeParams& params, DType dtype, const DeviceOutput& output, const LaunchPlan& plan,
                        const Workspace& workspace, BlockStamps* stamps, Stream stream) {
  with_timed_pipeline(params, dtype, [&](auto pipeline) {
    using Pipeline = StampedPipeline<typename decltype(pipeline)::type>;
    typename Pipeline::Arguments arguments = Pipeline::arguments(params, plan);
    arguments.stamps = stamps;
    if (plan.cluster > 0)
      return launch_splits<Pipeline>(stamped_short_end<Pipeline>, params, output, arguments, plan, workspace, stream);
    const Launch config{.grid = {static_cast<unsigned>(plan.n_blocks)},
                        .block = {static_cast<unsigned>(plan.n_threads)},
                        .shared_bytes = plan.shared_bytes,
                        .overlaps = plan.overlaps};
    launch(stamped_runs<Pipeline>, config, stream, params, StampedEpilogue{{output}, stamps}, arguments,
           equal_runs_workspace<Pipeline>(params, plan, workspace.floats), workspace.counters);
  });
}

}  // namespace tree_attn::cuda
