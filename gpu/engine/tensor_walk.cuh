// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A pass of one or four warps over a range of positions on tensor cores: scores, weights, values, and the tree above
/// (eq. (7), section 5).
///
/// The shift of a leaf of 64 positions is that of its largest score; its sums have one order, a function of its keys alone,
/// so that bits do not depend on splits, batch, grid, alignment or the way in which rows are copied. A leaf that the edge of
/// a shard cuts is a leaf with fewer keys.
///
/// +0 and -0 of values are told apart only in a sequence of one key: sums on tensor cores start from +0.
#pragma once

#include "gpu/engine/box_ring.cuh"
#include "gpu/engine/tensor_ring.cuh"
#include "gpu/engine/unit_forest.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// The score of a key that is not seen.
inline constexpr float kNone = -std::numeric_limits<float>::infinity();
/// From here on a score is rounded before its shift is subtracted.
inline constexpr float kLargeScore = 0x1p22f;
/// Added to a number of less than kLargeScore it leaves the nearest whole number, in the lowest bits.
inline constexpr float kToWhole = 0x1.8p23f;

/// The largest element, or the sum, over the eight lanes that hold the scores of a query. A maximum drops NaN.
__device__ __forceinline__ float max_of_query(float x) {
  TREE_ATTN_UNROLL
  for (int flip = 4; flip < kWarp; flip *= 2) x = std::fmax(x, __shfl_xor_sync(kAllLanes, x, flip));
  return x;
}
__device__ __forceinline__ float sum_of_query(float x) {
  TREE_ATTN_UNROLL
  for (int flip = 4; flip < kWarp; flip *= 2) x += __shfl_xor_sync(kAllLanes, x, flip);
  return x;
}

/// 2^d for the exact d = scale x + origin - kToWhole of at most 1/4: 2^i times a polynomial of g, with i the whole number
/// nearest to d, and g = d - i, rounded once. 0 for i < -126 and for d = -inf, so the last product is exact but where i is
/// -126; NaN for NaN.
/// @param origin kToWhole plus a whole number of at most kLargeScore, exactly
__device__ __forceinline__ float exp2_of_sum(float x, float scale, float origin) {
  const float whole = fused_multiply_add(x, scale, origin);
  const float p = exp2_polynomial(fused_multiply_add(x, scale, origin - whole), true);
  const float power = multiply(p, float_of((bits_of(whole) << 23) + bits_of(1.0f)));
  return float_of(bits_of(power) & (whole < kToWhole - 126 ? 0u : ~0u));
}

/// The shift e = ceil(max s) of a leaf for a query, of its largest product.
__device__ __forceinline__ float leaf_shift(float score_scale, float largest) {
  return std::ceil(multiply(score_scale, largest)) + 0.0f;
}

/// Turns products q.k of a leaf into weights 2^(s - e), of n_queries queries and n keys each.
///
/// s - e is that of the exact product score_scale q.k, while it is below kLargeScore. e is the ceiling of the rounded
/// product, so the largest weight is in [1/2, 2^(1/8)]. Scores from 2^23 on are whole numbers, and the exact product would
/// differ from e by up to half a unit in the last place, which is any number: from kLargeScore on the difference is of the
/// rounded score, and the largest weight is in [1/2, 1].
///
/// Edges: a position without a key and a score of -inf have weight 0; a score of +inf or NaN has weight NaN, although the
/// maximum drops a NaN. Without any key to be seen e is -inf.
/// @param score_scale of tile_scales(), positive
template <int n_queries, int n>
__device__ __forceinline__ void make_weights(float score_scale, const float (&shift)[n_queries], float (&x)[n_queries][n]) {
  float scale[n_queries], origin[n_queries];
  bool has_large = false;
  TREE_ATTN_UNROLL
  for (int query = 0; query < n_queries; ++query) {
    scale[query] = score_scale, origin[query] = kToWhole - shift[query];
    has_large = has_large || std::fabs(shift[query]) >= kLargeScore;
  }
  if (has_large) {
    TREE_ATTN_UNROLL
    for (int query = 0; query < n_queries; ++query) {
      if (!(std::fabs(shift[query]) >= kLargeScore)) continue;
      TREE_ATTN_UNROLL
      for (int i = 0; i < n; ++i)
        x[query][i] = multiply(score_scale, x[query][i]) - (shift[query] == kNone ? 0.0f : shift[query]);
      scale[query] = 1, origin[query] = kToWhole;
    }
  }
  TREE_ATTN_UNROLL
  for (int i = 0; i < n_queries * n; ++i) x[i / n][i % n] = exp2_of_sum(x[i / n][i % n], scale[i / n], origin[i / n]);
}

/// Turns products q.k of a leaf into weights 2^(s - e) for a query of the lane.
/// @param[in,out] s q.k, then weights
/// @param[out] state shift e and the sum D of the weights
/// @returns bit k: key TileScores::key(k) is not seen; 0 if nothing asks for it
template <class State>
__device__ __forceinline__ unsigned weigh(float score_scale, int query, bool asks_for_seen, LeafScores& s, State& state) {
  float x[1][TileScores::kKeys], largest = kNone;
  TREE_ATTN_UNROLL
  for (int k = 0; k < TileScores::kKeys; ++k) x[0][k] = TileScores::at(s, query, k), largest = std::fmax(largest, x[0][k]);
  const float shift[] = {leaf_shift(score_scale, max_of_query(largest))};
  unsigned not_seen = 0;
  if (asks_for_seen) {
    TREE_ATTN_UNROLL
    for (int k = 0; k < TileScores::kKeys; ++k) not_seen |= multiply(score_scale, x[0][k]) == kNone ? 1u << k : 0;
  }
  make_weights(score_scale, shift, x);
  float sum = 0;
  TREE_ATTN_UNROLL
  for (int k = 0; k < TileScores::kKeys; ++k) sum += x[0][k], TileScores::at(s, query, k) = x[0][k];
  state.shift = shift[0], state.sum = sum_of_query(sum);
  return not_seen;
}

/// Turns products q.k of a leaf into scores: capped, and -inf where a key is not there, or not seen by a query.
/// @param first_row that rows of scores are counted from @param product_scale of tile_scales()
/// @returns what is left to multiply scores by
template <class Scores, class Leaves>
__device__ __forceinline__ float settle_scores(const DecodeParams& params, std::int64_t kv_head, std::int64_t first_row,
                                               const Leaves& leaves, int leaf, const LeafKeys& keys, float product_scale,
                                               const Scores& scores, typename Scores::Array& s) {
  constexpr int kKeys = Scores::kKeys, kScores = Scores::kLaneQueries * kKeys;
  const auto at = [&](int i) -> float& { return Scores::at(s, i / kKeys, i % kKeys); };
  if (params.softcap) {
    TREE_ATTN_UNROLL
    for (int i = 0; i < kScores; ++i) at(i) = params.softcap(multiply(product_scale, at(i)));
  }
  if (!keys.are_all()) {
    TREE_ATTN_UNROLL
    for (int i = 0; i < kScores; ++i)
      if (!keys.contain(scores.key(i % kKeys))) at(i) = kNone;
  }
  // Keys which another query sees, and this one does not.
  if (!leaves.are_seen_alike(leaf, params.n_edge())) {
    const std::int64_t first = leaves.position(leaf);
    TREE_ATTN_UNROLL
    for (int query = 0; query < Scores::kLaneQueries; ++query) {
      const Seen seen = params.seen(kv_head, first_row + scores.row(query));
      TREE_ATTN_UNROLL
      for (int k = 0; k < kKeys; ++k)
        if (!seen.contains(first + scores.key(k))) at(query * kKeys + k) = kNone;
    }
  }
  return params.softcap ? 1.0f : product_scale;
}

/// 16-byte vectors of shared memory of a thread group, besides its ring: what waits, the queries, and products that four
/// warps tell each other.
template <IsMmaTile Tile>
inline constexpr int kFirstProduct = Waiting<Tile>::kVectors + TileQueries<Tile>::kVectors;
template <class Tile>
inline constexpr int kTileVectors = 0;
template <IsMmaTile Tile>
inline constexpr int kTileVectors<Tile> = kFirstProduct<Tile> + (Tile::kWarps == 1 ? 0 : kLeafItems * kWarp);

/// A walk of a thread group: what it goes over, and with what.
template <IsMmaTile Tile, class Ring>
struct TileWalk {
  const DecodeParams& params;
  std::int64_t kv_head, first_row;
  const typename Ring::Leaves& leaves;
  Ring& ring;
  const TileQueries<Tile>& queries;
  int own_lane;
  const UnitTarget& target;        ///< where states go
  Shared<Bytes16> memory_of_warp;  ///< [kTileVectors]

  /// S^T = K Q^T. Of four warps each has the products of 16 keys, and tells the others.
  __device__ __forceinline__ void multiply_keys(int leaf, int lane, LeafScores& s) const {
    if constexpr (Tile::kWarps == 1) {
      TREE_ATTN_UNROLL
      for (int i = 0; i < Tile::kBoxes; i += Ring::kTileBoxes) {
        const Shared<Bytes16> tile = ring.next();
        TREE_ATTN_UNROLL
        for (int box = 0; box < Ring::kTileBoxes; ++box) add_scores(queries, tile + box * kBoxVectors, i + box, lane, s);
        ring.release(params, leaf, i / Ring::kTileBoxes);
      }
    } else {
      const Shared<Bytes16> products = memory_of_warp + (kFirstProduct<Tile> + lane);
      const int warp = own_lane / kWarp;
      float own[1][4] = {};
      ring.settle_keys(params);
      ring.for_each_of_keys(params, [&](int box, Shared<Bytes16> keys) {
        add_scores(queries, keys + warp * (16 * kRowVectors), box, lane, own);
      });
      store16(products + warp * kWarp, bytes16_of(own[0]));
      ring.release_keys(params, leaf);
      TREE_ATTN_UNROLL
      for (int i = 0; i < kLeafItems; ++i) widen<float>(load16(products + i * kWarp), s[i]);
    }
  }

  /// O^T = V^T P^T. Of four warps each has boxes of its own.
  __device__ __forceinline__ void multiply_values(int leaf, const LeafKeys& keys, const TileWeights<Tile>& weights, int lane,
                                                  float (&o)[Tile::kSteps][4]) const {
    if constexpr (Tile::kWarps == 1) {
      TREE_ATTN_UNROLL
      for (int i = 0; i < Tile::kBoxes; i += Ring::kTileBoxes) {
        const Shared<Bytes16> tile = ring.next();
        if (!keys.are_all()) ring.clear(tile, keys);
        TREE_ATTN_UNROLL
        for (int box = 0; box < Ring::kTileBoxes; ++box)
          add_values<Tile>(weights, tile + box * kBoxVectors, lane, o + 4 * (i + box));
        ring.release(params, leaf, Ring::kTiles + i / Ring::kTileBoxes);
      }
    } else {
      ring.settle_values(params);
      if (!keys.are_all()) ring.clear(params, keys);
      TREE_ATTN_UNROLL
      for (int i = 0; i < Tile::kBoxes; ++i) {
        const int first = i * Tile::kWarps, box = first + own_lane / kWarp;
        if (box < ring.n_values(params)) add_values<Tile>(weights, ring.values(box), lane, o + 4 * i);
        // Also without values: then it is the barrier between the products of two leaves, which lie in the same place.
        if (i == 0 || first < ring.n_values(params)) ring.release_values(params, leaf, first, first + Tile::kWarps);
      }
      ring.advance();
    }
  }

  /// Walks over all leaves. The ring has begun with them.
  /// @paper{eq_7, eq. (7)}
  __device__ __forceinline__ void over_leaves() const {
    const float product_scale = tile_scales<Tile>(params, kv_head).score;
    UnitForest<Tile, typename Ring::Leaves> forest(target, leaves, own_lane, memory_of_warp);
    // 0 or less: all queries are padding, which has no states. The target has it too; worked out again, it takes no register
    // before.
    const int n_rows = rows_in_use(params, first_row, Tile::kRows);
    for (int leaf = 0; leaf < leaves.n_leaves(); ++leaf) {
      const LeafKeys keys(leaves, leaf * static_cast<int>(kLeafKeys));
      // The widest states leave no register for what follows from the lane.
      const int in_group = Tile::kDim * Tile::kLaneQueries < 256 ? own_lane : opaque(own_lane);
      const int lane = Tile::kWarps == 1 ? in_group : in_group % kWarp;

      // S^T = K Q^T.
      LeafScores s = {};
      multiply_keys(leaf, lane, s);
      const float score_scale =
          settle_scores(params, kv_head, first_row, leaves, leaf, keys, product_scale, TileScores{lane}, s);

      // P^T, with the shifts and sums of the states.
      LaneState<Tile::kElements> states[Tile::kLaneQueries];
      TREE_ATTN_UNROLL
      for (int query = 0; query < Tile::kLaneQueries; ++query)
        if (query < n_rows) weigh(score_scale, query, false, s, states[query]);

      // O^T = V^T P^T.
      float o[Tile::kSteps][4] = {};
      multiply_values(leaf, keys, TileWeights<Tile>(s), lane, o);

      // The tree above. Query 0 of a lane is the last.
      TREE_ATTN_UNROLL
      for (int query = Tile::kLaneQueries - 1; query >= 0; --query) {
        if (query >= n_rows) continue;
        LaneState<Tile::kElements>& state = states[query];
        TREE_ATTN_UNROLL
        for (int c = 0; c < Tile::kElements; ++c) state.n[c] = tile_element<Tile>(o, query, c);
        const float e_and_sum[] = {state.shift, state.sum};
        if (__any_sync(kAllLanes, state.sum == 0) && is_empty(e_and_sum)) set_empty(state);
        if (Tile::row(lane, query) < n_rows) forest.push(leaf, state, query);
      }
      // Lanes without a query are here first. Products take whole warps.
      __syncwarp();
    }
  }
};

/// The pass of a thread group, for the queries first_row to first_row + kRows of the group of a kv head, as far as it has
/// them. The groups of a team walk over the same leaves.
///
/// The walk does not look at values. Sums that come out not finite are replaced when units are combined, see replace.cuh.
/// @param target where states go @param memory_of_group [kTileVectors]
/// @paper{eq_7, eq. (7)}
template <IsMmaTile Tile, class Ring>
__device__ __forceinline__ void accumulate_tiles(const DecodeParams& params, std::int64_t kv_head, std::int64_t first_row,
                                                 const typename Ring::Leaves& leaves, const UnitTarget& target, Ring& ring,
                                                 Shared<Bytes16> memory_of_group) {
  begin_early(leaves, ring.first_leaves(), [&] { ring.begin(params, kv_head, leaves); });
  // Opaque, so that nothing of all that follows from the lane is worked out before the first copies.
  const int own_lane = lane_of<Tile>(opaque(threadIdx.x));
  const TileQueries<Tile> queries(params, kv_head, first_row, memory_of_group + Waiting<Tile>::kVectors, own_lane);
  if constexpr (Tile::kWarps > 1) ring.sync();
  TileWalk<Tile, Ring>{params, kv_head, first_row, leaves, ring, queries, own_lane, target, memory_of_group}.over_leaves();
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
