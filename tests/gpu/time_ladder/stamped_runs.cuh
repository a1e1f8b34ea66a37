// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Both kernels of the library with stamps: when each of their blocks starts, has walked over its keys, and has
/// joined. A pipeline notes the time, and so does the epilogue.
#pragma once

#include "tree_attn/gpu/engine/equal_runs.cuh"
#include "tree_attn/gpu/engine/split.cuh"

#include <cstdint>
#include <type_traits>

namespace tree_attn::cuda {

/// What a block has reached, and of which its first thread notes the time.
enum Stage : int {
  kStarted,  ///< it has its memory and its first work range; the next it does is to start copies
  kWalked,   ///< the last of its work ranges has been walked over, by the first thread group
  kDone,     ///< all that it shares in has been joined
  kStamps    ///< number of stages
};

/// Notes the time of a stage of this block.
__device__ __forceinline__ void stamp(std::uint64_t* stamps, Stage stage) {
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
  if (threadIdx.x == 0) stamps[block * kStamps + stage] = nanoseconds();
}

template <IsPipeline Pipeline>
class StampedPipeline : public Pipeline {
 public:
  struct Arguments {
    typename Pipeline::Arguments own;
    std::uint64_t* stamps;
  };
  static Arguments arguments(const typename Pipeline::Params& params, const LaunchPlan& plan) {
    return {Pipeline::arguments(params, plan), nullptr};
  }
  __device__ __forceinline__ StampedPipeline(Arena& arena, const Arguments& arguments)
      : Pipeline(arena, arguments.own), stamps_(arguments.stamps) {}
  __device__ __forceinline__ void operator()(const typename Pipeline::Params& params, std::int64_t kv_head,
                                             std::int64_t first_row, KeyRange range, float* forests, std::int64_t n_forest) {
    if (!has_started_) stamp(stamps_, kStarted);
    has_started_ = true;
    Pipeline::operator()(params, kv_head, first_row, range, forests, n_forest);
    stamp(stamps_, kWalked);
  }

 private:
  std::uint64_t* stamps_;
  bool has_started_ = false;
};

struct StampedEpilogue : WriteEpilogue {
  std::uint64_t* stamps;

  template <IsThreadGroup ThreadGroup, class Params>
  __device__ __forceinline__ void block_done(const Params&, int, Scratch, Tiles) const {
    __syncthreads();
    stamp(stamps, kDone);
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
  stamp(arguments.stamps, kDone);
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
/// @param plan of that step @param[out] stamps [plan.n_blocks][kStamps], nanoseconds of a clock that all blocks share; those
/// of blocks without work are not written
/// @throws DeviceError for rows of other than 128 elements and latent rows, and types other than F32 and BF16
inline void run_stamped(const DecodeParams& params, DType dtype, const DeviceOutput& output, const LaunchPlan& plan,
                        const Workspace& workspace, std::uint64_t* stamps, Stream stream) {
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
