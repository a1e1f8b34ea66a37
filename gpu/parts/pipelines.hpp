// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The worker for a shape, a sub-warp of lanes or a warp on tensor cores, and its way to keys and values.
#pragma once

#include "gpu/parts/bulk_ring.cuh"
#include "gpu/parts/lane_ring.cuh"
#include "gpu/parts/listed_steps.cuh"
#include "gpu/parts/mma_pipeline.cuh"
#include "gpu/parts/pipeline.cuh"
#include "gpu/parts/sub_warps.hpp"

#include <type_traits>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// How sub-warps reach rows.
struct RowAccess {
  bool aligned;  ///< rows start at multiples of 16 bytes
  bool bulk;     ///< rows of a step are one bulk copy
};

/// Sub-warps that fill their rings themselves: by bulk copies where rows allow it, else by a general ring that takes rows of
/// any stride, length and alignment. Which one it is changes no bit. Wider rows take more of the memory, so fewer threads.
/// @tparam Params_ DecodeParams, or ListedParams for leaves in the order of a list
template <IsSubWarp SubWarp, class Params_ = DecodeParams>
class SubWarpPipeline {
 public:
  using Worker = SubWarp;
  using Params = Params_;
  using Steps = StepsOf<Params>;
  using Arguments = RowAccess;
  using General = LaneRing<SubWarp, 3, Steps>;
  static constexpr bool kIsCompiled = true;
  static constexpr int kStages = General::kStages;
  static constexpr int kThreads = kWarp * (SubWarp::kVectorsPerLane < 8 ? 8 / SubWarp::kVectorsPerLane : 1);
  static constexpr int kWorkers = kThreads / SubWarp::kLanes;
  static constexpr std::size_t kRingBytes = General::n_bytes(kThreads);
  static constexpr int kScratchFloats = static_cast<int>(kRingBytes / sizeof(float));
  static constexpr std::size_t kBytes = kRingBytes + (kWorkers * kStages * sizeof(Barrier) + 127) / 128 * 128;

  /// Which ways there are to the rows of a shard.
  static RowAccess arguments(const DecodeParams& params) {
    constexpr DType kDType = DTypeTraits<typename SubWarp::T>::kDType;
    return {starts_aligned(params, kDType),
            device().major >= 9 && has_bulk_rows(params, kDType, SubWarp::kLanes * SubWarp::kVectorsPerLane * 16)};
  }

  __device__ __forceinline__ SubWarpPipeline(Arena& arena, const RowAccess& access)
      : access_(access),
        memory_(arena.take<Bytes16>(kRingBytes / sizeof(Bytes16)))
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
        ,
        ring_(memory_ + worker() * Bulk::kVectors, arena.take<Barrier>(kWorkers * kStages) + worker() * kStages)
#endif
  {
  }
  /// Shared memory that is free between two ranges.
  __device__ __forceinline__ Scratch scratch() const { return {shared_as<float>(memory_), kScratchFloats}; }
  /// Makes what this thread has written to the scratch memory known to the copies of the next range.
  __device__ __forceinline__ static void publish_scratch() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    async_proxy_fence();
#endif
  }
  /// Walks over a range of leaves, each worker over its part.
  /// @param forests of the workers, one per slot, n_forest floats each
  __device__ __forceinline__ void operator()(const Params& params, std::int64_t kv_head, std::int64_t first_row,
                                             KeyRange range, float* forests, std::int64_t n_forest) {
    const KeyRange own = split_range(range, worker(), kWorkers);
    const Steps steps(own, params.in_use(kv_head));
    float* const forest = forests + worker() * n_forest;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    if (access_.bulk) {
      ring_.begin(params, kv_head, steps);
      return accumulate_keys<SubWarp>(params, kv_head, first_row, own, steps, forest, ring_);
    }
#endif
    General ring(memory_, params, kv_head, steps, access_.aligned);
    accumulate_keys<SubWarp>(params, kv_head, first_row, own, steps, forest, ring);
    copy_async_wait<0>();
  }

 private:
  __device__ __forceinline__ static int worker() { return static_cast<int>(threadIdx.x) / SubWarp::kLanes; }

  RowAccess access_;
  Shared<Bytes16> memory_;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using Bulk = BulkRing<SubWarp, kStages, Steps>;
  static_assert(kWorkers * Bulk::kVectors * sizeof(Bytes16) == kRingBytes);
  Bulk ring_;
#endif
};

/// Calls f with the pipeline of the library kernel. Which worker it is depends on type and shape alone, for it changes bits.
template <class T, class Params, class F>
void with_pipeline(const Params& params, const F& f) {
  if constexpr (DTypeTraits<T>::kUnit == KernelUnit::TensorCores) {
    if (multiplies_on_tensor_cores(params, DTypeTraits<T>::kDType))
      return with_tile<T>(params, [&](auto tile) { with_mma_pipeline<decltype(tile), Params>(f); });
  }
  with_sub_warp<T>(params, [&](auto sub_warp) { f(std::type_identity<SubWarpPipeline<decltype(sub_warp), Params>>{}); });
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
