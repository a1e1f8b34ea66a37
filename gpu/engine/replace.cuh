// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Replacement of sums on tensor cores that came out not finite: n of a unit again, for one row and a few components,
/// with zeros in place of values that are not finite, which are added by themselves (eq. (7)).
///
/// 0 * Inf, of a key that is not seen or of a part of a weight that is 0, is NaN. So values that are not finite would reach
/// components that have none of them. e and D do not depend on values. One warp takes the operands of its products from
/// global memory, with the sums in the order of the walk: a component without such values has the bits that it would have
/// without them.
#pragma once

#include "gpu/engine/row_states.cuh"
#include "gpu/engine/tensor_walk.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// True if x is neither Inf nor NaN.
__device__ __forceinline__ bool is_finite(float x) { return std::fabs(x) <= std::numeric_limits<float>::max(); }

/// In place of a tile: nothing is replaced. On scalar cores values of keys that are not seen are not added.
struct NoTile {};
/// The tile that replaces sums of a thread group, 64 components at a time.
template <class ThreadGroup>
struct ReplacingTile {
  using Type = NoTile;
};
template <IsTensorTile Tile>
struct ReplacingTile<Tile> {
  using Type = MmaTile<typename Tile::Stored, kBoxColumns, 8>;
};

/// o <- o + w x for every value element x that is not finite, of keys that are seen: Inf or NaN, in its component alone.
/// @param value row of the first position of the leaf, from the first component on; d_v: components from there on
/// @param weights, not_seen as weigh() leaves them, of query 0 of a lane
template <IsMmaTile Tile>
__device__ __forceinline__ void add_not_finite(const typename Tile::Stored* value, std::int64_t stride, int d_v,
                                               const LeafKeys& keys, const LeafScores& weights, unsigned not_seen, int lane,
                                               float (&o)[Tile::kSteps][4]) {
  TREE_ATTN_LOOP
  for (int j = keys.sinks > 0 ? 0 : keys.begin; j < keys.end; ++j) {
    // The weight of key j is with one of the eight lanes of a query.
    const int own = j / 8, from = j % 8 * 4 + lane % 4;
    float weight = 0;
    TREE_ATTN_UNROLL
    for (int i = 0; i < 2 * kLeafItems; ++i) weight = i == own ? weights[i / 2][i % 2 * 2] : weight;
    weight = __shfl_sync(kAllLanes, weight, from);
    const bool is_seen = (__shfl_sync(kAllLanes, not_seen, from) >> own & 1) == 0;
    TREE_ATTN_UNROLL
    for (int c = 0; c < Tile::kElements; ++c) {
      const int component = Tile::component(lane, c);
      if (!is_seen || component >= d_v) continue;
      const float x = widen(load_once(value + j * stride + component));
      if (!is_finite(x)) o[c / 2][c % 2 * 2] += multiply(weight, x);
    }
  }
}

/// The states of one row in one slice.
/// @tparam Tile ReplacingTile
template <IsMmaTile Tile, class Params>
struct Replacement {
  using Stored = typename Tile::Stored;
  using T = typename Tile::T;
  using Leaves = LeavesOf<Params>;

  const Params& params;
  Count kv_head, in_group;  ///< the row in the group of a kv head
  ParkedStates parked;
  int first;  ///< component of the slice
  int lane;

  /// Two neighbours as an operand has them.
  __device__ __forceinline__ static std::uint32_t pair(float low, float high) {
    return pack(narrow<T>(low), narrow<T>(high));
  }

  /// q.k of the 64 keys of a leaf, with the query in column 0, in the order of add_scores().
  __device__ __forceinline__ void multiply_keys(const Leaves& leaves, const LeafKeys& keys, float query_scale,
                                                LeafScores& s) const {
    const T* const query = params.template query<T>(kv_head, in_group);
    const Stored* const key = params.template key<Stored>(kv_head, leaves.origin() + leaves.row(keys.at));
    const auto of_query = [&](int c) {
      return lane / 4 == 0 && c < params.d_h ? query_scale * widen(load_once(query + c)) : 0.0f;
    };
    const auto of_key = [&](int j, int c) {
      return keys.contain(j) && c < params.d_h ? widen(load_once(key + j * params.k.stride[2] + c)) : 0.0f;
    };
    TREE_ATTN_LOOP
    for (int column = lane % 4 * 2; column - lane % 4 * 2 < params.d_h; column += 16) {
      std::uint32_t q[1][2], k[kLeafItems][4];
      TREE_ATTN_UNROLL
      for (int i = 0; i < 2; ++i) q[0][i] = pair(of_query(column + 8 * i), of_query(column + 8 * i + 1));
      TREE_ATTN_UNROLL
      for (int i = 0; i < 4 * kLeafItems; ++i) {
        const int j = i / 4 * 16 + lane / 4 + i % 2 * 8, c = column + i % 4 / 2 * 8;
        k[i / 4][i % 4] = pair(of_key(j, c), of_key(j, c + 1));
      }
      mma_16x8x16<T>(s, k, q);
    }
  }

  /// The state of a leaf, into shared memory.
  __device__ __forceinline__ void leaf_state(const Leaves& leaves, int leaf, int at) const {
    const LeafKeys keys(leaves, leaf * static_cast<int>(kLeafKeys));
    const Scales scale = tile_scales<Tile>(params, kv_head);
    LeafScores s = {};
    multiply_keys(leaves, keys, scale.query, s);
    const float score_scale = settle_scores(params, kv_head, in_group, leaves, leaf, keys, scale.score, TileScores{lane}, s);
    SliceState state;
    set_empty(state);
    const unsigned not_seen = weigh(score_scale, 0, true, s, state);
    parked.store(at, state);
    __syncwarp();

    // O^T = V^T P^T.
    const Stored* const value = params.template value<Stored>(kv_head, leaves.origin() + leaves.row(keys.at));
    const TileWeights<Tile> weights(s);
    TREE_ATTN_LOOP
    for (int box = first; box < first + kSlice && box < params.d_v; box += kBoxColumns) {
      float o[Tile::kSteps][4] = {};
      add_not_finite<Tile>(value + box, params.v.stride[2], params.d_v - box, keys, s, not_seen, lane, o);
      const auto of_value = [&](int j, int c) {
        const float x = keys.contain(j) && c < params.d_v ? widen(load_once(value + j * params.v.stride[2] + c)) : 0.0f;
        return is_finite(x) ? x : 0.0f;
      };
      add_values<Tile>(
          weights,
          [&](int item, std::uint32_t(&v)[4][4]) {
            TREE_ATTN_UNROLL
            for (int i = 0; i < 16; ++i) {
              const int j = 16 * item + lane % 4 * 2 + i % 4 / 2 * 8, c = box + i / 4 * 16 + lane / 4 + i % 2 * 8;
              v[i / 4][i % 4] = pair(of_value(j, c), of_value(j + 1, c));
            }
          },
          o);
      TREE_ATTN_UNROLL
      for (int c = 0; c < Tile::kElements; ++c)
        if (lane % 4 == 0) parked.components(at)[box - first + Tile::component(lane, c)] = tile_element<Tile>(o, 0, c);
    }
    __syncwarp();
  }

  /// The state of a unit.
  __device__ __forceinline__ void unit_state(const Leaves& leaves, SliceState& state) const {
    Count waits = 0;
    int n_parked = 0;
    TREE_ATTN_LOOP
    for (int leaf = 0; leaf < leaves.n_leaves(); ++leaf) {
      __syncwarp();
      leaf_state(leaves, leaf, n_parked);
      parked.load(n_parked, state);
      const float e_and_sum[] = {state.shift, state.sum};
      if (is_empty(e_and_sum)) set_empty(state);
      if (leaf + 1 < leaves.n_leaves())
        park(parked, highest_bit(Count(leaves.slot(leaf)) ^ Count(leaves.slot(leaf + 1))), waits, n_parked, state);
      else
        merge_parked(parked, ~Count{0}, waits, n_parked, state);
    }
  }
};

/// n of a unit again, where it is not finite: of one row, in one slice. By one warp.
/// @param first component of the slice
template <IsMmaTile Tile, class Params>
__device__ __forceinline__ void replace_sums(const Params& params, const RowOfBlock& of, const UnitMemory& memory,
                                             Count unit, int first, const ParkedStates& parked, int lane) {
  const int component = first + 4 * lane;
  float* const row = memory.row(of.first_item + unit, of.row);
  float* const own = row + UnitMemory::kFirstComponent + component;
  SliceState state;
  set_empty(state);
  set_state_vector(state, 0, load_fresh16(row));
  if (component < params.d_v) set_state_vector(state, 1, load_fresh16(own));
  if (!is_broken(state)) return;
  const std::int64_t begin = of.units.begin_of(unit);
  Replacement<Tile, Params>{params, of.kv_head, of.in_group, parked, first, lane}.unit_state(
      LeavesOf<Params>(params.leaves_of_slots(of.entry, begin, of.units.end_of(begin)), params.in_use(of.kv_head)), state);
  if (component < params.d_v) store_fresh16(own, state_vector(state, 1));
  __syncwarp();
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
