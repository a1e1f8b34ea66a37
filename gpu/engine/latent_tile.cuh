// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Four warpgroups that serve 16 or 32 queries of latent rows at once, and their products, exact in the weights
/// (section 6.3, MLA). Compute capability 9.0.
///
/// A leaf of 64 keys is in shared memory once, as tensor maps leave it, and is both sides of the step: its keys are the rows
/// of S^T = K Q^T, and their first 512 elements, transposed, those of O^T = V^T P^T. Queries are on the short side of the
/// products, 16 or 32 columns of 64 x 16. The first warpgroup multiplies keys, and tells the others; each makes weights for
/// 16 queries, as far as there are any, and multiplies 128 components with the parts of all weights, from shared memory.
/// Sums have the order of a tile of tensor.cuh, so they have its bits.
#pragma once

#include "gpu/engine/tensor_walk.cuh"
#include "gpu/engine/warpgroup.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Queries that a warpgroup makes weights for, and boxes of the longest row of keys.
inline constexpr int kWeighed = 16, kLatentBoxes = kLongestRow / kBoxColumns;

/// A tile of kRows queries, spread over four warpgroups with 128 components each. Of every 8 queries a lane has two, and of
/// those four components: see wgmma_64xNx16().
/// @tparam Stored_ F16, BF16, or F8_E4M3, which is widened to BF16 in shared memory @tparam kRows_ 16 or 32
template <class Stored_, int kRows_>
struct LatentTile {
  using Stored = Stored_;
  using T = Multiplied<Stored>;
  static constexpr int kLanes = 4 * kWarpgroup, kRows = kRows_, kEights = kRows / 8;
  static constexpr int kLaneQueries = 2 * kEights, kElements = 4, kKeyBoxes = kLatentBoxes;
  /// Sums of a thread: two boxes of components, eight queries at a time.
  using Sums = float[2][kEights][4];

  __host__ __device__ static int row(int lane, int query) { return query / 2 * 8 + lane % 4 * 2 + query % 2; }
  __host__ __device__ static int part(int lane) { return lane; }
  __host__ __device__ static int box_row(int r) { return r; }  ///< of a query in the boxes of queries
  __host__ __device__ static int component(int lane, int c) {
    return (lane / kWarpgroup * 2 + c / 2) * kBoxColumns + lane / kWarp % 4 * 16 + lane % kWarp / 4 + c % 2 * 8;
  }
};
/// Floats of the components that wait, divided by the queries of a lane: shifts and sums wait elsewhere.
template <class Stored, int kRows>
inline constexpr int kStackEntry<LatentTile<Stored, kRows>> = 4 * LatentTile<Stored, kRows>::kLanes;

/// A tile of four warpgroups.
template <class Tile>
concept IsLatentTile = IsTensorTile<Tile> && Tile::kLanes == 4 * kWarpgroup;

/// Shared memory of a block.
template <IsLatentTile Tile>
struct LatentMemory {
  static constexpr int kRows = Tile::kRows, kStages = 2;
  static constexpr int kStageVectors = kLatentBoxes * kBoxVectors, kRowsOfBox = kRows * kRowVectors;
  /// Floats from key to key of weights, and levels of the tree; the last one is that of a unit that ends.
  static constexpr int kPitch = kWeighed + 4, kLevels = 32;

  Shared<Bytes16> keys;      ///< [kStages][kLatentBoxes] boxes
  Shared<Bytes16> queries;   ///< [kLatentBoxes] boxes of kRows rows
  Shared<Bytes16> parts;     ///< [3] boxes of kRows rows: lower, middle and upper parts of weights
  Shared<Bytes16> products;  ///< [kEights][kWarpgroup], as the first warpgroup has them
  Shared<float> weights;     ///< [kRows / kWeighed][64 keys][kPitch]
  Shared<float> largest;     ///< [kRows / kWeighed][4 warps][kWeighed]
  Shared<float> of_leaf;     ///< [2][kRows], shifts and sums of the leaf at hand
  Shared<float> rows;        ///< [kLevels][2][kRows], those of the states that wait
  Shared<float> factors;     ///< [kLevels][kRows], see LatentForest
  Shared<unsigned> empty;    ///< bit r: no key of the leaf is seen by query r
  Shared<Barrier> full;      ///< [kStages], and then as many of stages that are free

  __device__ __forceinline__ explicit LatentMemory(Arena& arena)
      : keys(arena.take<Bytes16>(kStages * kStageVectors, kBoxAlignment)),
        queries(arena.take<Bytes16>(kLatentBoxes * kRowsOfBox, kBoxAlignment)),
        parts(arena.take<Bytes16>(3 * kRowsOfBox, kBoxAlignment)),
        products(arena.take<Bytes16>(Tile::kEights * kWarpgroup)),
        weights(arena.take<float>(kRows / kWeighed * 64 * kPitch)),
        largest(arena.take<float>(4 * kRows)),
        of_leaf(arena.take<float>(2 * kRows)),
        rows(arena.take<float>(kLevels * 2 * kRows)),
        factors(arena.take<float>(kLevels * kRows)),
        empty(arena.take<unsigned>(1)),
        full(arena.take<Barrier>(2 * kStages)) {}
  static constexpr std::size_t kBytes =
      kBoxAlignment + (kStages * kStageVectors + (kLatentBoxes + 3) * kRowsOfBox + Tile::kEights * kWarpgroup) * 16 +
      (kRows / kWeighed * 64 * kPitch + (4 + 2 + 3 * kLevels) * kRows) * sizeof(float) + 4 * 128;
};

/// The warpgroup of this thread, and its index in it.
__device__ __forceinline__ int warpgroup() { return warp_uniform(static_cast<int>(threadIdx.x / kWarpgroup)); }
struct LatentThread {
  int thread, lane, warp;

  /// Opaque, so that nothing that follows from it is kept in registers from leaf to leaf.
  __device__ __forceinline__ LatentThread()
      : thread(opaque(static_cast<int>(threadIdx.x % kWarpgroup))), lane(thread % kWarp), warp(thread / kWarp) {}
};

/// Starts S^T = K Q^T. The first warpgroup.
template <IsLatentTile Tile>
__device__ __forceinline__ void multiply_keys(Shared<Bytes16> keys, Shared<Bytes16> queries, float (&s)[Tile::kEights][4]) {
  // Opaque, so that what describes the queries is not kept in registers from leaf to leaf.
  BoxMatrix k = box_matrix(keys), q = box_matrix(queries + opaque(0));
  wgmma_fence(s);
  TREE_ATTN_UNROLL
  for (int box = 0; box < kLatentBoxes; ++box) {
    wgmma_64xNx16<typename Tile::T, 4>(
        s, [&](int i) { return k + i * 32; }, [&](int i) { return q + i * 32; });
    k = k + static_cast<int>(kLeafKeys) * kBoxRowBytes, q = q + Tile::kRows * kBoxRowBytes;
  }
  wgmma_commit();
}

/// Starts O^T = V^T P^T with the parts [first, last) of the weights, of the keys 16 by 16. @param values two boxes
template <IsLatentTile Tile, int first, int last>
__device__ __forceinline__ void multiply_values(Shared<Bytes16> values, Shared<Bytes16> parts, typename Tile::Sums& o) {
  constexpr int kPartBytes = Tile::kRows * kBoxRowBytes;
  BoxMatrix v = box_matrix(values), p = box_matrix(parts) + first * kPartBytes;
  wgmma_fence(o);
  TREE_ATTN_UNROLL
  for (int item = 0; item < kLeafItems; ++item) {
    TREE_ATTN_UNROLL
    for (int box = 0; box < 2; ++box)
      wgmma_64xNx16<typename Tile::T, last - first, true>(
          o[box], [&](int) { return v + box * static_cast<int>(kLeafKeys) * kBoxRowBytes; },
          [&](int i) { return p + i * kPartBytes; });
    v = v + 16 * kBoxRowBytes, p = p + 32;
  }
  wgmma_commit();
}

/// A leaf whose products become weights.
template <class Leaves>
struct LatentLeaf {
  const DecodeParams& params;
  Count kv_head, first_row;
  const Leaves& leaves;
  int leaf;
  const LeafKeys& keys;
};

/// Turns products of 16 queries into weights and their parts, shifts and sums. One warpgroup; then a barrier of the block.
/// @param part of the queries, 16 by 16
template <IsLatentTile Tile, class Leaves>
__device__ __forceinline__ void weigh(const LatentMemory<Tile>& memory, const LatentLeaf<Leaves>& of, int part) {
  using Memory = LatentMemory<Tile>;
  using Scores = LaneScores<1, 2>;
  const LatentThread at;
  const Scores scores{at.lane, at.warp};
  const int first = part * kWeighed;
  const Shared<float> w = memory.weights + part * static_cast<int>(kLeafKeys) * Memory::kPitch,
                      largest = memory.largest + part * 4 * kWeighed;
  Scores::Array s;
  TREE_ATTN_UNROLL
  for (int j = 0; j < 2; ++j) widen<float>(load16(memory.products + ((2 * part + j) * kWarpgroup + at.thread)), s[j]);
  const float scale = settle_scores(of.params, of.kv_head, std::int64_t{of.first_row} + first, of.leaves, of.leaf, of.keys,
                                    tile_scales<Tile>(of.params, of.kv_head).score, scores, s);

  // The shifts: of the largest score of all warps.
  TREE_ATTN_UNROLL
  for (int query = 0; query < Scores::kLaneQueries; ++query) {
    const float most = max_of_query(std::fmax(scores.at(s, query, 0), scores.at(s, query, 1)));
    if (at.lane < 4) largest[at.warp * kWeighed + scores.row(query)] = most;
  }
  sync_neighbours(kWarpgroup);
  float shift[Scores::kLaneQueries], x[Scores::kLaneQueries][2];
  TREE_ATTN_UNROLL
  for (int query = 0; query < Scores::kLaneQueries; ++query) {
    float most = kNone;
    TREE_ATTN_UNROLL
    for (int i = 0; i < 4; ++i) most = std::fmax(most, largest[i * kWeighed + scores.row(query)]);
    shift[query] = leaf_shift(scale, most);
    x[query][0] = scores.at(s, query, 0), x[query][1] = scores.at(s, query, 1);
    if (at.thread < 4) memory.of_leaf[first + scores.row(query)] = shift[query];
  }
  make_weights(scale, shift, x);
  TREE_ATTN_UNROLL
  for (int i = 0; i < 8; ++i)
    w[scores.key(i % 2) * Memory::kPitch + scores.row(i / 2)] = scores.at(s, i / 2, i % 2) = x[i / 2][i % 2];

  // Their parts: a row of a query has the keys in their order.
  std::uint32_t matrix[3][4];
  TREE_ATTN_UNROLL
  for (int i = 0; i < 4; ++i) split_pair<typename Tile::T>(s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1], matrix, i);
  const int vector = vector_at(first + at.lane / 16 * 8 + at.lane % 8, 2 * at.warp + at.lane / 8 % 2);
  TREE_ATTN_UNROLL
  for (int i = 0; i < 3; ++i) store_matrices_x4_transposed(memory.parts + (i * Memory::kRowsOfBox + vector), matrix[i]);
  async_proxy_fence();

  // Their sums: eight keys apart, and then by the butterfly.
  sync_neighbours(kWarpgroup);
  const int row = at.thread / 8, first_key = at.thread % 8;
  float sum = 0;
  TREE_ATTN_UNROLL
  for (int i = 0; i < 8; ++i) sum += w[(first_key + 8 * i) * Memory::kPitch + row];
  TREE_ATTN_UNROLL
  for (int flip = 1; flip < 8; flip *= 2) sum += __shfl_xor_sync(kAllLanes, sum, flip);
  if (first_key == 0) memory.of_leaf[Tile::kRows + first + row] = sum;
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
