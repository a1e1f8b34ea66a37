// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A warpgroup that serves up to 64 queries at once, and its products, exact in the weights (eq. (7), section 6.3).
/// Compute capability 9.0.
///
/// Queries are the rows of S = Q K^T and O = P V, of which a warp has 16. So all scores of a query are with four lanes, the
/// parts of its weights are operands where they are made, and warps tell each other nothing. Keys and values are where
/// tensor maps leave them. Sums have the order of a tile of tensor.cuh, so they have its bits.
#pragma once

#include "gpu/engine/latent_tile.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// A tile of 64 queries, spread over a warpgroup: of the first 32, and of the others, a warp has eight each, and a lane one.
/// Up to 32 are the first.
/// @tparam Stored_ F16, BF16, or F8_E4M3, which is widened to BF16 in shared memory
/// @tparam kDim_ elements of a row, padded: 64 or 128
template <class Stored_, int kDim_>
struct WgmmaTile {
  using Stored = Stored_;
  using T = Multiplied<Stored>;
  static constexpr int kLanes = kWarpgroup, kRows = 64, kLaneQueries = 2;
  static constexpr int kDim = kDim_, kBoxes = kDim / kBoxColumns, kElements = 16 * kBoxes;
  static constexpr int kKeyBoxes = kBoxes;

  __host__ __device__ static int row(int lane, int query) { return query * 32 + lane / 4; }
  __host__ __device__ static int part(int lane) { return lane; }
  __host__ __device__ static int component(int lane, int c) {
    return c / 16 * kBoxColumns + c % 16 / 2 * 8 + lane % 4 * 2 + c % 2;
  }
  /// The row of a query in the boxes of queries: eight of the first 32, and eight of the others, are the rows of a warp.
  __host__ __device__ static int box_row(int r) { return r % 32 / 8 * 16 + r / 32 * 8 + r % 8; }
};

/// Scores of a lane, or weights, for one of its queries, see LaneScores.
struct RowScores {
  using Array = float[1][16];
  static constexpr int kLaneQueries = 1, kKeys = 16;
  int lane, own_row;

  __device__ __forceinline__ static float& at(Array& s, int /*query*/, int k) { return s[0][k]; }
  __device__ __forceinline__ int key(int k) const { return k / 2 * 8 + lane % 4 * 2 + k % 2; }
  __device__ __forceinline__ int row(int /*query*/) const { return own_row; }
};

/// A tile of a warpgroup. Tiles of four warps have eight queries.
template <class Tile>
concept IsWgmmaTile = IsTensorTile<Tile> && Tile::kLanes == kWarpgroup&& Tile::kRows == 64;

/// Shared memory of a warpgroup beside its ring, in 16-byte vectors: the queries, as boxes of 64 rows, and states that wait.
template <IsWgmmaTile Tile>
inline constexpr int kQueryVectors = Tile::kBoxes* Tile::kRows* kRowVectors;
template <IsWgmmaTile Tile>
using WgmmaWaiting = InSharedMemory<Tile>;
template <IsWgmmaTile Tile>
inline constexpr int kTileVectors<Tile> = kQueryVectors<Tile> + WgmmaWaiting<Tile>::kVectors;

}  // namespace tree_attn::TREE_ATTN_PLATFORM
