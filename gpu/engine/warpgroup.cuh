// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Warpgroups, where there are any, and their queries in shared memory (section 6.3). Compute capability 9.0.
#pragma once

#include "gpu/engine/tensor.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// True where products of warpgroups are compiled.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool kHasWarpgroups = true;
#elif __CUDA_ARCH__ == 900
#error "compute capability 9.0 is compiled for 90a: CMAKE_CUDA_ARCHITECTURES=90a-real"
#else
inline constexpr bool kHasWarpgroups = false;
#endif

/// Threads of a warpgroup.
inline constexpr int kWarpgroup = 4 * kWarp;

/// Loads the queries as boxes, see query_pair().
template <IsTensorTile Tile>
__device__ __forceinline__ void load_queries(const DecodeParams& params, std::int64_t kv_head, std::int64_t first_row,
                                             Shared<Bytes16> boxes) {
  const float scale = tile_scales<Tile>(params, kv_head).query;
  constexpr int kUnits = Tile::kKeyBoxes * kRowVectors;
  TREE_ATTN_LOOP
  for (int i = lane_of<Tile>(threadIdx.x); i < Tile::kRows * kUnits; i += Tile::kLanes) {
    const int r = i / kUnits, unit = i % kUnits;
    Bytes16 bytes;
    TREE_ATTN_UNROLL
    for (int c = 0; c < 4; ++c)
      bytes.word[c] = query_pair<typename Tile::T>(params, kv_head, first_row, r, 8 * unit + 2 * c, scale);
    store16(boxes + (unit / kRowVectors * Tile::kRows * kRowVectors + vector_at(Tile::box_row(r), unit % kRowVectors)),
            bytes);
  }
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
