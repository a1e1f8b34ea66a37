// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Warps on tensor cores and their way to keys and values: the pipeline of 16-bit types (section 6.3).
#pragma once

#include "gpu/parts/launch_plan.hpp"
#include "gpu/parts/mma_accumulator.cuh"
#include "gpu/parts/pipeline.cuh"

#include <algorithm>
#include <type_traits>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Warps on tensor cores, each with a ring of its own. Four of them, one per scheduler: so each has all the registers that a
/// thread may have. Two, where four have no room for their rings.
/// @tparam kCopy how rows come into shared memory where they are aligned; it changes no bit
/// @tparam Params_ DecodeParams, or ListedParams for leaves in the order of a list
template <IsMmaTile Tile, RowCopy kCopy, class Params_ = DecodeParams>
class MmaPipeline {
 public:
  using Worker = Tile;
  using Params = Params_;
  using Ring = TileRing<Tile, kCopy, LeavesOf<Params>>;
  struct Arguments {
    bool aligned;              ///< rows may be copied as kCopy says
    typename Ring::Maps maps;  ///< of keys and values
  };
#if defined(__CUDA_ARCH__)
  static constexpr bool kIsCompiled = Ring::kHasMaps == (__CUDA_ARCH__ >= 900);
#else
  static constexpr bool kIsCompiled = true;
#endif
  static constexpr int kMostWarps = 4, kThreads = kMostWarps * kWarp;

  static constexpr BlockSize fit(std::size_t n_bytes) {
    const int n_warps = bytes_of(kMostWarps, Ring::kStages) <= n_bytes ? kMostWarps : kMostWarps / 2;
    int n_stages = Ring::kStages;
    while (n_stages > 2 && bytes_of(n_warps, n_stages) > n_bytes) --n_stages;
    return {n_warps * kWarp, n_stages, bytes_of(n_warps, n_stages), 4 * n_vectors(n_warps, n_stages)};
  }
  __device__ __forceinline__ MmaPipeline(Arena& arena, const Arguments& arguments)
      : aligned_(arguments.aligned),
        full_(arena.take<Barrier>(n_warps() * Ring::kStages)),
        memory_(arena.take<Bytes16>(n_vectors(n_warps(), Ring::n_stages(arguments.maps)), kBoxAlignment)),
        ring_(memory_ + first_ring(n_warps()) + worker() * Ring::n_stages(arguments.maps) * Ring::kStageVectors,
              full_ + worker() * Ring::kStages, arguments.maps, lane_of<Tile>(threadIdx.x)) {}
  /// Describes keys and values to the copy engine, if it takes them.
  static Arguments arguments(const Params& params, int n_stages) {
    Arguments arguments{starts_aligned(params, DTypeTraits<typename Tile::T>::kDType), {}};
    if constexpr (Ring::kHasMaps) {
      const auto array_of = [&params](const DeviceView& view, int d) {
        return TensorArray{view.data,
                           DTypeTraits<typename Tile::T>::kDType,
                           {params.batch, params.kv_heads, params.rows_end() - params.begin, d},
                           {view.stride[0], view.stride[1], view.stride[2]},
                           kLeafKeys};
      };
      const TensorArray k = array_of(params.k, params.d_h), v = array_of(params.v, params.d_v);
      arguments.aligned = arguments.aligned && refusal(k).empty() && refusal(v).empty();
      if (arguments.aligned) arguments.maps = {make_tensor_map(k), make_tensor_map(v)};
      arguments.maps.n_stages = n_stages;
    }
    return arguments;
  }
  /// Orders what this thread has written to the scratch memory before the copies of the next range.
  __device__ __forceinline__ static void publish_scratch() {
    if constexpr (Ring::kHasMaps) async_proxy_fence();
  }
  __device__ __forceinline__ Scratch scratch() const {
    return {shared_as<float>(memory_), 4 * n_vectors(n_warps(), ring_.n_stages())};
  }
  __device__ __forceinline__ void operator()(const Params& params, std::int64_t kv_head, std::int64_t first_row,
                                             KeyRange range, float* forests, std::int64_t n_forest) {
    const KeyRange own = split_range(range, worker(), n_warps());
    kv_head = warp_uniform(kv_head);
    const LeavesOf<Params> leaves({warp_uniform(own.begin), warp_uniform(own.end)}, params.in_use(kv_head));
    accumulate_tiles<Tile>(params, kv_head, warp_uniform(first_row), leaves, forests + worker() * Tile::kSlots * n_forest,
                           n_forest, aligned_, ring_, memory_ + worker() * kTileVectors<Tile>);
  }

 private:
  /// 16-byte vectors: what warps keep beside their rings, and at a multiple of 1024 bytes the rings.
  static constexpr int first_ring(int n_warps) {
    constexpr int kUnit = kBoxAlignment / static_cast<int>(sizeof(Bytes16));
    return (n_warps * kTileVectors<Tile> + kUnit - 1) / kUnit * kUnit;
  }
  static constexpr int n_vectors(int n_warps, int n_stages) {
    return first_ring(n_warps) + n_warps * n_stages * Ring::kStageVectors;
  }
  /// Shared memory: the barriers, and at a multiple of 1024 bytes the vectors.
  static constexpr std::size_t bytes_of(int n_warps, int n_stages) {
    return kBoxAlignment + static_cast<std::size_t>(n_vectors(n_warps, n_stages)) * sizeof(Bytes16);
  }
  // Without tensor maps the number of stages is fixed.
  static_assert(bytes_of(kMostWarps, Ring::kStages) + kKernelBytes <= kMostSharedBytes &&
                bytes_of(kMostWarps / 2, Ring::kHasMaps ? 2 : Ring::kStages) + kKernelBytes <= kLeastSharedBytes);
  __device__ __forceinline__ static int worker() { return warp_uniform(worker_of<Tile>(threadIdx.x)); }
  __device__ __forceinline__ static int n_warps() {
    return kFitsLargestBlock ? kMostWarps : static_cast<int>(blockDim.x) / kWarp;
  }

  bool aligned_;
  Shared<Barrier> full_;
  Shared<Bytes16> memory_;
  Ring ring_;
};

/// Calls f with the tile for a shape: rows of 64, 128 or 256 elements, for 8 queries. F16 sums parts of two units, which
/// leaves registers for 4 queries where rows have 256 elements. A function of the type and of the length of rows alone, for
/// it changes bits.
template <class T, class F>
void with_tile(const DecodeParams& params, const F& f) {
  const int d = std::max(params.d_h, params.d_v);
  if (d <= 64) return f(MmaTile<T, 64, 8>{});
  if (d <= 128) return f(MmaTile<T, 128, 8>{});
  constexpr int kRows = kRestUnit<T> == 1 ? 8 : 4;
  f(MmaTile<T, 256, kRows>{});
}

/// Calls f with the pipeline of a tile that suits the device.
template <IsMmaTile Tile, class Params = DecodeParams, class F>
void with_mma_pipeline(const F& f) {
  if (device().major >= 9) return f(std::type_identity<MmaPipeline<Tile, RowCopy::TensorMap, Params>>{});
  f(std::type_identity<MmaPipeline<Tile, RowCopy::Async, Params>>{});
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
