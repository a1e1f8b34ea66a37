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
#include "gpu/engine/forest.cuh"
#include "gpu/engine/tensor_ring.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Of a key that is not seen.
inline constexpr float kNone = -std::numeric_limits<float>::infinity();
/// From here on every F32 is a whole number.
inline constexpr float kWholeScores = 0x1p23f;

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

/// Turns products q.k of a leaf into weights 2^(s - e), with e = ceil(max s) and D, their sum, for the query of a slot.
///
/// s - e is rounded once: of the exact product score_scale q.k, while that is below kWholeScores. e is the ceiling of the
/// rounded product, so the largest weight is in [1/2, 2^(1/4)]. From there on rounded scores are whole numbers, and the
/// exact product would differ from e by up to half a unit in the last place, which is any number: the difference is then of
/// the rounded score, and the largest weight is 1.
///
/// Edges: a position without a key and a score of -inf have weight 0; a score of +inf or NaN has weight NaN, although the
/// maximum drops a NaN. Without any key to be seen e is -inf.
/// @param score_scale TileScale::score, positive
/// @param[in,out] s q.k, then weights
/// @param[out] state shift e and sum D
/// @returns bit 2 i + h: key score_key(lane, i, h) is not seen; 0 if nothing asks for it
template <class State>
__device__ __forceinline__ unsigned weigh(float score_scale, int slot, bool asks_for_seen, LeafScores& s, State& state) {
  // The shift.
  float largest = kNone;
  TREE_ATTN_UNROLL
  for (int i = 0; i < 2 * kLeafItems; ++i) largest = std::fmax(largest, s[i / 2][i % 2 * 2 + slot]);
  const float shift = std::ceil(multiply(score_scale, max_of_query(largest))) + 0.0f;
  unsigned not_seen = 0;
  if (asks_for_seen) {
    TREE_ATTN_UNROLL
    for (int i = 0; i < 2 * kLeafItems; ++i)
      not_seen |= multiply(score_scale, s[i / 2][i % 2 * 2 + slot]) == kNone ? 1u << i : 0;
  }

  // Weights.
  const float offset = shift == kNone ? 0.0f : -shift;
  if (std::fabs(shift) >= kWholeScores) {
    TREE_ATTN_UNROLL
    for (int i = 0; i < 2 * kLeafItems; ++i) {
      float& x = s[i / 2][i % 2 * 2 + slot];
      x = multiply(score_scale, x);
    }
    score_scale = 1;
  }
  TREE_ATTN_UNROLL
  for (int i = 0; i < 2 * kLeafItems; ++i) {
    float& x = s[i / 2][i % 2 * 2 + slot];
    x = exp2_flushed(fused_multiply_add(x, score_scale, offset));
  }

  // Their sum.
  float sum = 0;
  TREE_ATTN_UNROLL
  for (int i = 0; i < 2 * kLeafItems; ++i) sum += s[i / 2][i % 2 * 2 + slot];
  state.shift = shift, state.sum = sum_of_query(sum);
  return not_seen;
}

/// o <- o + w x for every value element x that is not finite, of keys that are seen: Inf or NaN, in its component alone.
/// @param value row of the first position of the leaf
/// @param weights, not_seen as weigh() leaves them
template <IsMmaTile Tile>
__device__ __forceinline__ void add_not_finite(const typename Tile::Stored* value, std::int64_t stride, int d_v,
                                               const LeafKeys& keys, const LeafScores& weights,
                                               const unsigned (&not_seen)[Tile::kSlots], int lane,
                                               float (&o)[Tile::kSteps][4]) {
  for (int j = keys.sinks > 0 ? 0 : keys.begin; j < keys.end; ++j) {
    // The weight of key j is with one of the eight lanes of a query.
    const int own = j / 8, from = j % 8 * 4 + lane % 4;
    TREE_ATTN_UNROLL
    for (int slot = 0; slot < Tile::kSlots; ++slot) {
      float weight = 0;
      TREE_ATTN_UNROLL
      for (int i = 0; i < 2 * kLeafItems; ++i) weight = i == own ? weights[i / 2][i % 2 * 2 + slot] : weight;
      weight = __shfl_sync(kAllLanes, weight, from);
      const bool is_seen = (__shfl_sync(kAllLanes, not_seen[slot], from) >> own & 1) == 0;
      TREE_ATTN_UNROLL
      for (int c = 0; c < Tile::kElements; ++c) {
        const int component = Tile::component(lane, c);
        if (!is_seen || component >= d_v) continue;
        const float x = widen(load_once(value + j * stride + component));
        if (!is_finite(x)) o[c / 2][c % 2 * 2 + slot] += multiply(weight, x);
      }
    }
  }
}

/// Where states wait for their siblings.
template <IsMmaTile Tile>
using TileWaiting = std::conditional_t<Tile::kWarps == 1, InSharedMemory<Tile>, InRegisters<Tile::kElements, Tile::kSlots>>;
/// 16-byte vectors of shared memory of a thread group, besides its ring: what waits, the queries, and products that four
/// warps tell each other.
template <IsMmaTile Tile>
inline constexpr int kFirstProduct = TileWaiting<Tile>::kVectors + TileQueries<Tile>::kVectors;
template <IsMmaTile Tile>
inline constexpr int kTileVectors = kFirstProduct<Tile> + (Tile::kWarps == 1 ? 0 : kLeafItems * kWarp);

/// What a thread group walks over, and with what.
template <IsMmaTile Tile, class Ring, class Target>
struct TileWalk {
  const DecodeParams& params;
  std::int64_t kv_head, first_row;
  const typename Ring::Leaves& leaves;
  Ring& ring;
  const TileQueries<Tile>& queries;
  int n_rows;  ///< queries of the tile; the others, or all if it is 0 or less, are padding and have no states
  int own_lane;
  const Target& target;            ///< where states go: UnitTarget
  Shared<Bytes16> memory_of_warp;  ///< [kTileVectors]

  /// Makes the scores of a leaf -inf that a query has of keys which another one sees, and it does not.
  __device__ __forceinline__ void hide_unseen(int leaf, int lane, LeafScores& s) const {
    const std::int64_t first = leaves.position(leaf);
    TREE_ATTN_UNROLL
    for (int slot = 0; slot < Tile::kSlots; ++slot) {
      const Seen seen = params.seen(kv_head, first_row + Tile::row(lane, slot));
      TREE_ATTN_UNROLL
      for (int i = 0; i < 2 * kLeafItems; ++i)
        if (!seen.contains(first + score_key(lane, i / 2, i % 2))) s[i / 2][i % 2 * 2 + slot] = kNone;
    }
  }

  /// S^T = K Q^T. Of four warps each has the products of 16 keys, and tells the others.
  template <bool kCopies>
  __device__ __forceinline__ void multiply_keys(int leaf, int lane, LeafScores& s) const {
    if constexpr (Tile::kWarps == 1) {
      TREE_ATTN_UNROLL
      for (int i = 0; i < Tile::kBoxes; i += Ring::kTileBoxes) {
        const Shared<Bytes16> tile = ring.next();
        TREE_ATTN_UNROLL
        for (int box = 0; box < Ring::kTileBoxes; ++box) add_scores(queries, tile + box * kBoxVectors, i + box, lane, s);
        ring.template release<kCopies>(params, leaf, i / Ring::kTileBoxes);
      }
    } else {
      const Shared<Bytes16> products = memory_of_warp + (kFirstProduct<Tile> + lane);
      const int warp = own_lane / kWarp;
      float own[1][4] = {};
      ring.settle_keys(params);
      ring.for_each_of_keys(params, [&](int box, Shared<Bytes16> keys) {
        add_scores(queries, keys + warp * (16 * kRowVectors), box, lane, own);
      });
      Bytes16 bytes;
      std::memcpy(&bytes, own, sizeof bytes);
      store16(products + warp * kWarp, bytes);
      ring.template release_keys<kCopies>(params, leaf);
      TREE_ATTN_UNROLL
      for (int i = 0; i < kLeafItems; ++i) {
        bytes = load16(products + i * kWarp);
        std::memcpy(s[i], &bytes, sizeof bytes);
      }
    }
  }

  /// O^T = V^T P^T. Of four warps each has boxes of its own.
  template <bool kCopies>
  __device__ __forceinline__ void multiply_values(int leaf, const LeafKeys& keys, const TileWeights<Tile>& weights, int lane,
                                                  float (&o)[Tile::kSteps][4]) const {
    if constexpr (Tile::kWarps == 1) {
      TREE_ATTN_UNROLL
      for (int i = 0; i < Tile::kBoxes; i += Ring::kTileBoxes) {
        const Shared<Bytes16> tile = ring.next();
        if (kCopies && !keys.are_all()) ring.clear(tile, keys);
        TREE_ATTN_UNROLL
        for (int box = 0; box < Ring::kTileBoxes; ++box)
          add_values<Tile>(weights, tile + box * kBoxVectors, lane, o + 4 * (i + box));
        ring.template release<kCopies>(params, leaf, Ring::kTiles + i / Ring::kTileBoxes);
      }
    } else {
      ring.settle_values(params);
      if (kCopies && !keys.are_all()) ring.clear(params, keys);
      TREE_ATTN_UNROLL
      for (int i = 0; i < Tile::kBoxes; ++i) {
        const int first = i * Tile::kWarps, box = first + own_lane / kWarp;
        if (box < ring.n_values(params)) add_values<Tile>(weights, ring.values(box), lane, o + 4 * i);
        if (first < ring.n_values(params)) ring.template release_values<kCopies>(params, leaf, first, first + Tile::kWarps);
      }
      ring.advance();
    }
  }

  /// Walks over all leaves. The ring has begun with them.
  ///
  /// The two walks have the same sums in the same order. The one over copied rows holds nothing that few ranges need: values
  /// that are not finite are left to the other.
  /// @tparam kCopies as in TileRing::begin(): else values that are not finite are zeros in the ring, and are added by
  /// themselves
  /// @returns whether a state of the team is not finite
  /// @paper{eq_7, eq. (7)}
  template <bool kCopies>
  __device__ __forceinline__ bool over_leaves() const {
    const float product_scale = TileScale::of<Tile>(params, kv_head).score,
                score_scale = params.softcap ? 1 : product_scale;  // of capped scores, or of products
    auto forests =
        target.template forest<Tile, typename Ring::Leaves, TileWaiting<Tile>>(leaves, own_lane, memory_of_warp, own_lane);
    for (int leaf = 0; leaf < leaves.n_leaves(); ++leaf) {
      const LeafKeys keys(leaves, leaf * static_cast<int>(kLeafKeys));
      // The first row of the leaf, as DecodeParams::value() takes it.
      const auto value = [&] { return params.value<typename Tile::Stored>(kv_head, leaves.origin() + leaves.row(keys.at)); };
      // The widest states leave no register for what follows from the lane.
      const int in_group = Tile::kDim * Tile::kSlots < 256 ? own_lane : opaque(own_lane);
      const int lane = Tile::kWarps == 1 ? in_group : in_group % kWarp;

      // S^T = K Q^T.
      LeafScores s = {};
      multiply_keys<kCopies>(leaf, lane, s);
      if (params.softcap) {
        TREE_ATTN_UNROLL
        for (int i = 0; i < 4 * kLeafItems; ++i) s[i / 4][i % 4] = params.softcap(multiply(product_scale, s[i / 4][i % 4]));
      }
      if (!keys.are_all()) {
        TREE_ATTN_UNROLL
        for (int i = 0; i < 4 * kLeafItems; ++i)
          if (!keys.contain(score_key(lane, i / 4, i % 4 / 2))) s[i / 4][i % 4] = kNone;
      }
      if (!leaves.are_seen_alike(leaf, params.n_edge())) hide_unseen(leaf, lane, s);

      // P^T, with the shifts and sums of the states.
      LaneState<Tile::kElements> states[Tile::kSlots];
      unsigned not_seen[Tile::kSlots] = {};
      TREE_ATTN_UNROLL
      for (int slot = 0; slot < Tile::kSlots; ++slot) {
        if (slot < n_rows) not_seen[slot] = weigh(score_scale, slot, !kCopies, s, states[slot]);
      }

      // O^T = V^T P^T.
      float o[Tile::kSteps][4] = {};
      if (!kCopies) add_not_finite<Tile>(value(), params.v.stride[2], params.d_v, keys, s, not_seen, in_group, o);
      multiply_values<kCopies>(leaf, keys, TileWeights<Tile>(s), lane, o);

      // The tree above. Slot 0 is the last.
      TREE_ATTN_UNROLL
      for (int slot = Tile::kSlots - 1; slot >= 0; --slot) {
        if (slot >= n_rows) continue;
        LaneState<Tile::kElements>& state = states[slot];
        TREE_ATTN_UNROLL
        for (int c = 0; c < Tile::kElements; ++c) state.n[c] = tile_element<Tile>(o, slot, c);
        const float e_and_sum[] = {state.shift, state.sum};
        if (__any_sync(kAllLanes, state.sum == 0) && is_empty(e_and_sum)) set_empty(state);
        if (Tile::row(lane, slot) < n_rows) forests.push(leaf, state, slot);
      }
      // Lanes without a query are here first. Products take whole warps.
      __syncwarp();
    }
    if constexpr (Tile::kWarps == 1)
      return ring.any(forests.is_broken(), shared_as<int>(memory_of_warp), 4 * kTileVectors<Tile>);
    else
      return ring.any(forests.is_broken());
  }
};

/// The pass of a thread group, for the queries first_row to first_row + kRows of the group of a kv head, as far as it has
/// them. The groups of a team walk over the same leaves.
///
/// Values that are not finite are looked for once, when the range has been walked over: 0 * Inf, of a key that is not seen
/// or of a part of a weight that is 0, is NaN, and survives all merges. If a state is not finite the team walks over the
/// range again with zeros in place of such values, and they are added by themselves. So a component without them keeps its
/// bits.
/// @param target where states go @param memory_of_warp [kTileVectors]
/// @paper{eq_7, eq. (7)}
template <IsMmaTile Tile, class Ring, class Target>
__device__ __forceinline__ void accumulate_tiles(const DecodeParams& params, std::int64_t kv_head, std::int64_t first_row,
                                                 const typename Ring::Leaves& leaves, const Target& target, Ring& ring,
                                                 Shared<Bytes16> memory_of_warp) {
  begin_early(leaves, ring.first_leaves(), [&] { ring.template begin<true>(params, kv_head, leaves); });
  // Opaque, so that nothing of all that follows from the lane is worked out before the first copies.
  const int own_lane = lane_of<Tile>(opaque(threadIdx.x));
  const TileQueries<Tile> queries(params, kv_head, first_row, memory_of_warp + TileWaiting<Tile>::kVectors, own_lane);
  if constexpr (Tile::kWarps > 1) ring.sync();
  const TileWalk<Tile, Ring, Target> walk{
      params,   kv_head, first_row,     leaves, ring, queries, rows_in_use(params, first_row, Tile::kRows),
      own_lane, target,  memory_of_warp};
  if (!walk.template over_leaves<true>()) return;
  ring.template begin<false>(params, kv_head, leaves);
  walk.template over_leaves<false>();
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
