// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The worker for a shape, a sub-warp of lanes or a warp on tensor cores, and its way to keys and values.
#pragma once

#include "gpu/parts/join.cuh"
#include "gpu/parts/lane_ring.cuh"
#include "gpu/parts/mma_accumulator.cuh"
#include "gpu/parts/sub_warps.hpp"

#include <type_traits>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// What the library kernel is made of: a kind of worker and its way to keys and values. All threads of a block make one, at
/// the start, and call it for every range of the block.
template <class Pipeline>
concept IsPipeline = IsWorker<typename Pipeline::Worker> &&
    requires(Pipeline pipeline, const DecodeParams& params, std::int64_t i, KeyRange range, float* forests, bool aligned) {
  { Pipeline::kIsCompiled } -> std::convertible_to<bool>;    // for this architecture
  { Pipeline::kThreads } -> std::convertible_to<int>;        // of a block
  { Pipeline::kWorkers } -> std::convertible_to<int>;        // of a block, that accumulate
  { Pipeline::kStages } -> std::convertible_to<int>;         // copies in flight
  { Pipeline::kBytes } -> std::convertible_to<std::size_t>;  // of shared memory
  { pipeline.scratch() } -> std::same_as<Scratch>;           // shared memory that is free between two ranges
  pipeline(params, /*kv_head*/ i, /*first_row*/ i, range, forests, /*n_forest*/ i, aligned);
};

/// Sub-warps that copy for themselves, rows of any length and alignment: a ring of three stages. Bulk copies by a producer
/// (step 8) were no faster on an H200 once the arithmetic was short, and take aligned rows only. Wider rows take more of it,
/// so fewer threads.
template <IsSubWarp SubWarp>
class SubWarpPipeline {
 public:
  using Worker = SubWarp;
  static constexpr bool kIsCompiled = true;
  static constexpr int kStages = 3, kThreads = 256 / SubWarp::kVectorsPerLane, kWorkers = kThreads / SubWarp::kLanes;
  static constexpr std::size_t kBytes = LaneRing<SubWarp>::n_bytes(kStages, kThreads);

  __device__ __forceinline__ explicit SubWarpPipeline(Arena& arena)
      : memory_(arena.take<Bytes16>(kBytes / sizeof(Bytes16))) {}
  /// Shared memory that is free between two ranges.
  __device__ __forceinline__ Scratch scratch() const {
    return {shared_as<float>(memory_), static_cast<int>(kBytes / sizeof(float))};
  }
  /// Walks over a range of positions, each worker over its part.
  /// @param forests of the workers, each with one a slot; n_forest floats each
  __device__ __forceinline__ void operator()(const DecodeParams& params, std::int64_t kv_head, std::int64_t first_row,
                                             KeyRange range, float* forests, std::int64_t n_forest, bool aligned) {
    const int worker = static_cast<int>(threadIdx.x) / SubWarp::kLanes;
    accumulate_keys_async<SubWarp, kStages>(params, kv_head, first_row, split_range(range, worker, kWorkers),
                                            forests + worker * n_forest, aligned, LaneRing<SubWarp>(memory_));
  }

 private:
  Shared<Bytes16> memory_;
};

/// A number that is the same in all lanes of a warp, and that the compiler knows to be: it may stay in a register of the
/// warp.
template <class T>
__device__ __forceinline__ T warp_uniform(T x) {
  return __shfl_sync(kAllLanes, x, 0);
}

/// Warps on tensor cores, each with shared memory of its own: as many as registers and shared memory allow.
template <IsMmaTile Tile>
class MmaPipeline {
 public:
  using Worker = Tile;
  static constexpr int kFit = static_cast<int>((227 * 1024 - 3 * 128) / (kTileVectors<Tile> * sizeof(Bytes16)));
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  static constexpr bool kIsCompiled = Tile::kDim < 128 || Tile::kTiles == 1;
#else
  static constexpr bool kIsCompiled = true;
#endif
  static constexpr int kStages = TileRing<Tile>::kStages, kWorkers = kFit < Tile::kWarps ? kFit : Tile::kWarps;
  static constexpr int kThreads = kWorkers * kWarp;
  static constexpr std::size_t kBytes = kWorkers * kTileVectors<Tile> * sizeof(Bytes16);

  __device__ __forceinline__ explicit MmaPipeline(Arena& arena) : memory_(arena.take<Bytes16>(kBytes / sizeof(Bytes16))) {}
  __device__ __forceinline__ Scratch scratch() const {
    return {shared_as<float>(memory_), static_cast<int>(kBytes / sizeof(float))};
  }
  __device__ __forceinline__ void operator()(const DecodeParams& params, std::int64_t kv_head, std::int64_t first_row,
                                             KeyRange range, float* forests, std::int64_t n_forest, bool aligned) {
    const int worker = warp_uniform(static_cast<int>(threadIdx.x) / kWarp);
    const KeyRange own = split_range(range, worker, kWorkers);
    accumulate_tiles<Tile>(params, warp_uniform(kv_head), warp_uniform(first_row),
                           {warp_uniform(own.begin), warp_uniform(own.end)}, forests + worker * Tile::kSlots * n_forest,
                           n_forest, aligned, memory_ + worker * kTileVectors<Tile>);
  }

 private:
  Shared<Bytes16> memory_;
};

/// Calls f with the smallest tile for a shape. Rows of 256 numbers leave registers for 8 queries only, and so do rows of 128
/// before compute capability 9. How many queries a tile has changes no bit of any.
template <class T, class F>
void with_tile(const DecodeParams& params, const F& f) {
  const int d = std::max(params.d_h, params.d_v);
  const auto with_tiles = [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    if constexpr (kDim < 256) {
      if (params.group > 8 && (kDim == 64 || device().major >= 9)) return f(MmaTile<T, kDim, 2>{});
    }
    f(MmaTile<T, kDim, 1>{});
  };
  if (d <= 64) return with_tiles(std::integral_constant<int, 64>{});
  if (d <= 128) return with_tiles(std::integral_constant<int, 128>{});
  with_tiles(std::integral_constant<int, 256>{});
}

/// Calls f with the pipeline of the library kernel. Which worker it is depends on type and shape alone, for it changes bits.
template <class T, class F>
void with_pipeline(const DecodeParams& params, const F& f) {
  if constexpr (DTypeTraits<T>::kUnit == KernelUnit::TensorCores) {
    if (multiplies_on_tensor_cores(params, DTypeTraits<T>::kDType))
      return with_tile<T>(params, [&](auto tile) { f(std::type_identity<MmaPipeline<decltype(tile)>>{}); });
  }
  with_sub_warp<T>(params, [&](auto sub_warp) { f(std::type_identity<SubWarpPipeline<decltype(sub_warp)>>{}); });
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
