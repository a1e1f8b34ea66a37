// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The worker for a shape, a sub-warp of lanes or a warp on tensor cores, and its way to keys and values.
#pragma once

#include "gpu/parts/bulk_ring.cuh"
#include "gpu/parts/lane_ring.cuh"
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
/// The widest have two stages: three would not fit the smallest devices.
/// @tparam Params_ DecodeParams, or ListedParams for leaves in the order of a list
template <IsSubWarp SubWarp, class Params_ = DecodeParams>
class SubWarpPipeline {
 public:
  using Worker = SubWarp;
  using Params = Params_;
  using Leaves = LeavesOf<Params>;
  using Arguments = RowAccess;
  static constexpr int kStages = SubWarp::kVectorsPerLane > 4 ? 2 : 3;
  using General = LaneRing<SubWarp, kStages, Leaves>;
  static constexpr bool kIsCompiled = true;
  static constexpr int kMostWarps = (8 + SubWarp::kVectorsPerLane - 1) / SubWarp::kVectorsPerLane;
  static constexpr int kThreads = kMostWarps * kWarp;

  static constexpr BlockSize fit(std::size_t n_bytes) {
    int n_warps = kMostWarps;
    while (n_warps > 1 && bytes_of(n_warps) > n_bytes) --n_warps;
    return {n_warps * kWarp, kStages, bytes_of(n_warps), n_scratch_floats(n_warps * kWarp)};
  }
  /// Which ways there are to the rows of a shard.
  static RowAccess arguments(const DecodeParams& params, int) {
    constexpr DType kDType = DTypeTraits<typename SubWarp::T>::kDType;
    return {starts_aligned(params, kDType),
            device().major >= 9 && has_bulk_rows(params, kDType, SubWarp::kLanes * SubWarp::kVectorsPerLane * 16)};
  }

  __device__ __forceinline__ SubWarpPipeline(Arena& arena, const RowAccess& access)
      : access_(access),
        memory_(arena.take<Bytes16>(General::n_bytes(n_threads()) / sizeof(Bytes16)))
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
        ,
        ring_(memory_ + worker() * Bulk::kVectors, arena.take<Barrier>(n_workers() * kStages) + worker() * kStages)
#endif
  {
  }
  /// Shared memory that is free between two ranges.
  __device__ __forceinline__ Scratch scratch() const { return {shared_as<float>(memory_), n_scratch_floats(n_threads())}; }
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
    const KeySteps<Leaves> steps(split_range(range, worker(), n_workers()), params.in_use(kv_head));
    float* const forest = forests + worker() * n_forest;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    if (access_.bulk) {
      begin_early(steps.leaves(), Bulk::kFirstLeaves, [&] { ring_.begin(params, kv_head, steps); });
      return accumulate_keys<SubWarp>(params, kv_head, first_row, steps, forest, ring_);
    }
#endif
    wait_for_previous_launch();
    General ring(memory_, params, kv_head, steps, access_.aligned);
    accumulate_keys<SubWarp>(params, kv_head, first_row, steps, forest, ring);
    copy_async_wait<0>();
  }

 private:
  /// Rings and barriers.
  static constexpr std::size_t bytes_of(int n_warps) {
    const std::size_t n_barriers = static_cast<std::size_t>(n_workers_of<SubWarp>(n_warps * kWarp) * kStages);
    return General::n_bytes(n_warps * kWarp) + (n_barriers * sizeof(Barrier) + 127) / 128 * 128;
  }
  static constexpr int n_scratch_floats(int n_threads) {
    return static_cast<int>(General::n_bytes(n_threads) / sizeof(float));
  }
  static_assert(bytes_of(1) + kKernelBytes <= kLeastSharedBytes && bytes_of(kMostWarps) + kKernelBytes <= kMostSharedBytes);
  __device__ __forceinline__ static int worker() { return worker_of<SubWarp>(threadIdx.x); }
  __device__ __forceinline__ static int n_threads() { return kFitsLargestBlock ? kThreads : static_cast<int>(blockDim.x); }
  __device__ __forceinline__ static int n_workers() { return n_workers_of<SubWarp>(n_threads()); }

  RowAccess access_;
  Shared<Bytes16> memory_;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using Bulk = BulkRing<SubWarp, kStages, Leaves>;
  static_assert(n_workers_of<SubWarp>(kThreads) * Bulk::kVectors * sizeof(Bytes16) == General::n_bytes(kThreads));
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
