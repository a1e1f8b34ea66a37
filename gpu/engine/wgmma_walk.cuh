// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A warpgroup that serves up to 64 queries at once, exact in the weights, and its pass over a range of positions:
/// scores, weights, values, and the tree above (eq. (7), sections 5 and 6.3). Compute capability 9.0.
///
/// Queries are the rows of S = Q K^T and O = P V, of which a warp has 16. So all scores of a query are with four lanes, the
/// parts of its weights are operands where they are made, and warps tell each other nothing: they meet where a tile of keys
/// or values has been read. Keys and values are where tensor maps leave them. Sums have the order of a tile of tensor.cuh,
/// so they have its bits.
#pragma once

#include "gpu/engine/tensor_walk.cuh"
#include "gpu/engine/unit_forest.cuh"
#include "gpu/engine/warpgroup.cuh"

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
  static constexpr bool kWaitsInRegisters = false;

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
inline constexpr int kTileVectors<Tile> = kQueryVectors<Tile> + Waiting<Tile>::kVectors;

/// A walk of a warpgroup: what it goes over, and with what.
template <IsWgmmaTile Tile, class Ring>
struct WgmmaWalk {
  using T = typename Tile::T;
  using State = LaneState<Tile::kElements>;
  /// Weights of a leaf as left operands, 16 keys after 16 keys: see split_pair().
  using Weights = std::uint32_t[kLeafItems][3][4];
  static constexpr int kColumns = 8 * Ring::kTileBoxes;  ///< of the sums of a tile of values, divided by eight

  const DecodeParams& params;
  Count kv_head, first_row;
  const typename Ring::Leaves& leaves;
  Ring& ring;
  Shared<Bytes16> queries;
  int n_rows;  ///< queries in use; the others are padding and have no states
  int lane;
  float product_scale;

  /// S = Q K^T.
  __device__ __forceinline__ void multiply_keys(int leaf, float (&s)[8][4]) const {
    const BoxMatrix q = box_matrix(queries);
    TREE_ATTN_UNROLL
    for (int i = 0; i < Ring::kTiles; ++i) {
      const BoxMatrix k = box_matrix(ring.next());
      wgmma_fence(s);
      TREE_ATTN_UNROLL
      for (int box = 0; box < Ring::kTileBoxes; ++box)
        wgmma_64xNx16<T, 4>(
            s, [&](int step) { return q + ((i * Ring::kTileBoxes + box) * Tile::kRows * kBoxRowBytes + step * 32); },
            [&](int step) { return k + (box * static_cast<int>(kLeafKeys) * kBoxRowBytes + step * 32); });
      wgmma_commit();
      wgmma_wait<0>(s);
      ring.release(params, leaf, i);
    }
  }

  /// Turns scores of a query into weights, with their shift and sum.
  __device__ __forceinline__ static void weigh(float scale, RowScores::Array& x, State& state) {
    float largest = kNone;
    TREE_ATTN_UNROLL
    for (int k = 0; k < RowScores::kKeys; ++k) largest = std::fmax(largest, x[0][k]);
    TREE_ATTN_UNROLL
    for (int flip = 1; flip < 4; flip *= 2) largest = std::fmax(largest, __shfl_xor_sync(kAllLanes, largest, flip));
    const float shift[] = {leaf_shift(scale, largest)};
    make_weights(scale, shift, x);
    // Eight keys apart, and then by the butterfly, of which a lane has the first step.
    float sums[2] = {};
    TREE_ATTN_UNROLL
    for (int k = 0; k < RowScores::kKeys; ++k) sums[k % 2] += x[0][k];
    float sum = sums[0] + sums[1];
    TREE_ATTN_UNROLL
    for (int flip = 1; flip < 4; flip *= 2) sum += __shfl_xor_sync(kAllLanes, sum, flip);
    state.shift = shift[0], state.sum = sum;
  }

  __device__ __forceinline__ static void scale(float (&o)[kColumns][4], float by) {
    TREE_ATTN_UNROLL
    for (int i = 0; i < 4 * kColumns; ++i) o[i / 4][i % 4] *= by;
  }
  /// Starts o <- o + P V for the boxes of a tile, with the parts [first, last).
  template <int first, int last>
  __device__ __forceinline__ static void start_values(const Weights& weights, Shared<Bytes16> values,
                                                      float (&o)[kColumns][4]) {
    const BoxMatrix v = box_matrix(values);
    wgmma_fence(o);
    TREE_ATTN_UNROLL
    for (int item = 0; item < kLeafItems; ++item) {
      const auto& parts = reinterpret_cast<const std::uint32_t(&)[last - first][4]>(weights[item][first]);
      wgmma_of_registers_64xNx16<T>(o, parts, [&](int) { return v + item * 16 * kBoxRowBytes; });
    }
    wgmma_commit();
  }
  /// O = P V.
  __device__ __forceinline__ void multiply_values(int leaf, const LeafKeys& keys, const Weights& weights,
                                                  float (&o)[Ring::kTiles][kColumns][4]) const {
    TREE_ATTN_UNROLL
    for (int i = 0; i < Ring::kTiles; ++i) {
      const Shared<Bytes16> values = ring.next();
      if (!keys.are_all()) ring.clear(values, keys);
      if constexpr (kRestUnit<T> != 1) {
        start_values<0, 2>(weights, values, o[i]);
        wgmma_wait<0>(o[i]);
        scale(o[i], 1 / kRestUnit<T>);
        start_values<2, 3>(weights, values, o[i]);
      } else {
        start_values<0, 3>(weights, values, o[i]);
      }
      wgmma_wait<0>(o[i]);
      ring.release(params, leaf, Ring::kTiles + i);
    }
  }

  /// Walks over all leaves. The ring has begun with them.
  /// @paper{eq_7, eq. (7)}
  __device__ __forceinline__ void over_leaves(UnitForest<Tile, typename Ring::Leaves>& forest) const {
    Weights weights = {};  // zeros for a query that is not in use
    TREE_ATTN_LOOP
    for (int leaf = 0; leaf < leaves.n_leaves(); ++leaf) {
      const LeafKeys keys(leaves, leaf * static_cast<int>(kLeafKeys));
      float s[8][4] = {};
      multiply_keys(leaf, s);
      State states[Tile::kLaneQueries];
      TREE_ATTN_UNROLL
      for (int query = 0; query < Tile::kLaneQueries; ++query) {
        if (32 * query >= n_rows) continue;
        RowScores::Array x;
        TREE_ATTN_UNROLL
        for (int k = 0; k < RowScores::kKeys; ++k) x[0][k] = s[k / 2][2 * query + k % 2];
        const float scale = settle_scores(params, kv_head, first_row, leaves, leaf, keys, product_scale,
                                          RowScores{lane, Tile::row(lane, query)}, x);
        weigh(scale, x, states[query]);
        TREE_ATTN_UNROLL
        for (int j = 0; j < 8; ++j) split_pair<T>(x[0][2 * j], x[0][2 * j + 1], weights[j / 2], j % 2 * 2 + query);
      }
      float o[Ring::kTiles][kColumns][4] = {};
      multiply_values(leaf, keys, weights, o);

      // The tree above. Query 0 of a lane is the last.
      TREE_ATTN_UNROLL
      for (int query = Tile::kLaneQueries - 1; query >= 0; --query) {
        if (32 * query >= n_rows) continue;
        State& state = states[query];
        TREE_ATTN_UNROLL
        for (int c = 0; c < Tile::kElements; ++c) {
          const float x = o[c / 2 / kColumns][c / 2 % kColumns][2 * query + c % 2];
          state.n[c] = kUpperUnit<T> == 1 ? x : x * (1 / kUpperUnit<T>);
        }
        const float e_and_sum[] = {state.shift, state.sum};
        if (__any_sync(kAllLanes, state.sum == 0) && is_empty(e_and_sum)) set_empty(state);
        forest.push(leaf, state, query);
      }
    }
  }
};

/// The pass of a warpgroup, see the other accumulate_tiles().
/// @paper{eq_7, eq. (7)}
template <IsWgmmaTile Tile, class Ring>
__device__ __forceinline__ void accumulate_tiles(const DecodeParams& params, std::int64_t kv_head, std::int64_t first_row,
                                                 const typename Ring::Leaves& leaves, const UnitTarget& target, Ring& ring,
                                                 Shared<Bytes16> memory_of_group) {
  begin_early(leaves, ring.first_leaves(), [&] { ring.begin(params, kv_head, leaves); });
  const int lane = lane_of<Tile>(threadIdx.x);
  load_queries<Tile>(params, kv_head, first_row, memory_of_group);
  async_proxy_fence();
  ring.sync();
  UnitForest<Tile, typename Ring::Leaves> forest(target, leaves, lane, memory_of_group + kQueryVectors<Tile>);
  WgmmaWalk<Tile, Ring>{params,
                        Count(kv_head),
                        Count(first_row),
                        leaves,
                        ring,
                        memory_of_group,
                        rows_in_use(params, first_row, Tile::kRows),
                        lane,
                        tile_scales<Tile>(params, kv_head).score}
      .over_leaves(forest);
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
