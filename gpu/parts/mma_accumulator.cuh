// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A warp's pass over a range of positions on tensor cores: scores, weights, values, and the tree above (eq. (7),
/// section 5).
///
/// The smallest subtree that has a state here is the leaf of 64 positions. Its shift is that of its largest score, its sums
/// run over its keys in an order of their own: a function of its keys alone, so that bits do not depend on splits, batch,
/// grid or alignment. They are not those of the scalar kernels. A leaf that the edge of a shard cuts has no such state: the
/// subtrees that cover what is left of it are walked one by one, as leaves with few keys. That is right, with bits of its
/// own: shards have the bits of the whole if they are cut at multiples of 64.
///
/// Values of +0 and -0 are told apart only in a sequence of one key: sums on tensor cores start from +0.
#pragma once

#include "gpu/parts/mma_tile.cuh"
#include "gpu/parts/tile_forests.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Tiles of 8 keys in a leaf.
inline constexpr int kLeafTiles = static_cast<int>(kLeafKeys) / 8;

/// Which positions of a leaf have a key.
struct LeafKeys {
  int begin, end;      ///< positions in the leaf
  bool is_single_key;  ///< whether key 0 of the sequence is its only one, see single_key()

  __device__ __forceinline__ bool contains(int index) const { return index >= begin && index < end; }
};

/// The largest element, or the sum, over the four lanes of a quad.
__device__ __forceinline__ float quad_max(float x) {
  TREE_ATTN_UNROLL
  for (int flip = 1; flip < 4; flip *= 2) {
    const float other = __shfl_xor_sync(kAllLanes, x, flip);
    x = other > x ? other : x;
  }
  return x;
}
__device__ __forceinline__ float quad_sum(float x) {
  TREE_ATTN_UNROLL
  for (int flip = 1; flip < 4; flip *= 2) x += __shfl_xor_sync(kAllLanes, x, flip);
  return x;
}

/// Turns products q.k of a leaf into weights 2^(s - e), with e and their sum for the queries g and g + 8 of a lane.
/// @param lift see set_key()
template <IsMmaTile Tile>
__device__ __forceinline__ void weigh(float score_scale, float lift, const LeafKeys& keys, int lane,
                                      float (&s)[kLeafTiles][4], float (&shift)[Tile::kTiles], float (&sum)[Tile::kTiles]) {
  constexpr float kNotSeen = -std::numeric_limits<float>::infinity();
  TREE_ATTN_UNROLL
  for (int h = 0; h < Tile::kTiles; ++h) {
    // Scores, and the largest shift.
    shift[h] = kNotSeen;
    TREE_ATTN_UNROLL
    for (int i = 0; i < 2 * kLeafTiles; ++i) {
      float& score = s[i / 2][2 * h + i % 2];
      const int index = i / 2 * 8 + lane % 4 * 2 + i % 2;
      score = keys.contains(index) ? score_scale * score : kNotSeen;
      const float e = key_shift(score);
      shift[h] = e > shift[h] ? e : shift[h];
    }
    shift[h] = quad_max(shift[h]) + lift;
    const float only = keys.is_single_key ? __shfl_sync(kAllLanes, s[0][2 * h], lane / 4 * 4) : kNotSeen;

    // Weights, and their sum.
    sum[h] = 0;
    TREE_ATTN_UNROLL
    for (int i = 0; i < 2 * kLeafTiles; ++i) {
      float& score = s[i / 2][2 * h + i % 2];
      const float weight = multiply(key_weight(score), rescale(shift[h], key_shift(score)).factor);
      score = score == kNotSeen ? -0.0f : weight;
      sum[h] += score;
    }
    sum[h] = quad_sum(sum[h]);
    if (keys.is_single_key && sum[h] > 0) {
      const WeighedKey<float> key = single_key(only, {shift[h], sum[h]});
      shift[h] = key.shift, sum[h] = key.weight;
      if (lane % 4 == 0) s[0][2 * h] = key.weight;
    }
  }
}

/// o <- o + V^T P^T for 16 keys, in units of 1 / kUnit. @param item [16][kPitch] vectors of values
template <IsMmaTile Tile>
__device__ __forceinline__ void multiply_values(const float (&p_upper)[4], const float (&p_lower)[4], Shared<Bytes16> item,
                                                int lane, float (&o)[Tile::kSteps][Tile::kTiles][4]) {
  using T = typename Tile::T;
  // What a lane holds of P is what the right operand of the next product wants: no transposition.
  std::uint32_t parts[Tile::kTiles][2][kParts];
  TREE_ATTN_UNROLL
  for (int h = 0; h < Tile::kTiles; ++h) {
    split_weights(T{}, p_upper[2 * h], p_upper[2 * h + 1], parts[h][0]);
    split_weights(T{}, p_lower[2 * h], p_lower[2 * h + 1], parts[h][1]);
  }
  TREE_ATTN_UNROLL
  for (int step = 0; step < Tile::kSteps; ++step) {
    std::uint32_t v[4];
    load_matrix_x4_transposed(v, item + (matrix_row<Tile>(lane) + 2 * step));
    TREE_ATTN_UNROLL
    for (int h = 0; h < Tile::kTiles; ++h) add_products(T{}, v, parts[h], o[step][h]);
  }
}

/// Calls f for every number of O^T that a lane holds.
template <class Tile, class F>
__device__ __forceinline__ void for_each_element(float (&o)[Tile::kSteps][Tile::kTiles][4], const F& f) {
  TREE_ATTN_UNROLL
  for (int step = 0; step < Tile::kSteps; ++step) {
    TREE_ATTN_UNROLL
    for (int h = 0; h < Tile::kTiles; ++h) {
      TREE_ATTN_UNROLL
      for (int c = 0; c < 4; ++c) f(o[step][h][c], 2 * h + c % 2, 2 * step + c / 2);
    }
  }
}

/// Adds the values that are not finite, one by one, where they are seen.
/// @param value row of the first position of the leaf @param keys those that have a value; a single one keeps its bits, also
/// those of -0
template <IsMmaTile Tile>
__device__ __forceinline__ void add_not_finite(const typename Tile::T* value, std::int64_t stride, int d_v,
                                               const LeafKeys& keys, const float (&p)[kLeafTiles][4], int lane,
                                               float (&o)[Tile::kSteps][Tile::kTiles][4]) {
  for (int j = keys.begin; j < keys.end; ++j) {
    // Fetch the weights of key j, each from the lane that has it.
    float weight[Tile::kSlots];
    TREE_ATTN_UNROLL
    for (int slot = 0; slot < Tile::kSlots; ++slot) {
      float mine = 0;
      TREE_ATTN_UNROLL
      for (int i = 0; i < 2 * kLeafTiles; ++i) {
        const float candidate = p[i / 2][slot / 2 * 2 + i % 2];
        mine = i == j / 8 * 2 + j % 2 ? candidate : mine;
      }
      weight[slot] = __shfl_sync(kAllLanes, mine, (lane % 4 * 2 + slot % 2) * 4 + j % 8 / 2);
    }
    for_each_element<Tile>(o, [&](float& n, int slot, int c) {
      const int component = Tile::component(lane, c);
      if (component >= d_v || !is_seen(weight[slot])) return;
      const float x = widen(load_once(value + j * stride + component));
      if (!is_finite(x)) n += multiply(weight[slot], x);
      if (keys.is_single_key) n = multiply(weight[slot], x);
    });
  }
}

/// 16-byte vectors of shared memory for one warp.
template <IsMmaTile Tile>
inline constexpr int kTileVectors = TileRing<Tile>::kVectors + TileForests<Tile>::kVectors +
                                    (TileQueries<Tile>::kInShared ? TileQueries<Tile>::kVectors : 0);

/// The pass of one warp, for the queries first_row to first_row + kRows of the group of a kv head.
/// @param memory of its forests, one a slot, n_forest floats each
/// @param aligned whether rows may be copied 16 bytes at a time
/// @param shared [kTileVectors] of the warp
/// @paper{eq_7, eq. (7)}
template <IsMmaTile Tile>
__device__ __forceinline__ void accumulate_tiles(const DecodeParams& params, std::int64_t kv_head, std::int64_t first_row,
                                                 KeyRange range, float* memory, std::int64_t n_forest, bool aligned,
                                                 Shared<Bytes16> shared) {
  using T = typename Tile::T;
  const int own_lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t used_end = params.in_use(kv_head).end;
  TileRing<Tile> ring(params, kv_head, range, aligned, shared, own_lane);
  TileForests<Tile> forests(memory, n_forest, range, shared + TileRing<Tile>::kVectors, own_lane);
  // Queries that do not stay are loaded where later states wait.
  static_assert(TileQueries<Tile>::kInShared || TileQueries<Tile>::kVectors <= TileForests<Tile>::kVectors);
  constexpr int kOffset = TileQueries<Tile>::kInShared ? TileForests<Tile>::kVectors : 0;
  const TileQueries<Tile> queries(params, kv_head, first_row, shared + (TileRing<Tile>::kVectors + kOffset), own_lane);

  std::int64_t next = range.begin;
  while (next < range.end) {
    const std::int64_t position = next;
    const Subtree subtree = first_leaf_subtree({position, range.end});
    next = subtree.end();
    const int lane = opaque(own_lane);  // No register is left for what only the end of a round needs.
    const std::int64_t leaf_begin = position / kLeafKeys * kLeafKeys,
                       keys_end = subtree.end() < used_end ? subtree.end() : used_end;
    const LeafKeys keys{static_cast<int>(position - leaf_begin), static_cast<int>(keys_end - leaf_begin),
                        position == 0 && params.lengths[kv_head / params.kv_heads] == 1};

    // S = Q K^T, then P.
    float s[kLeafTiles][4];
    TREE_ATTN_UNROLL
    for (int i = 0; i < kLeafItems; ++i) multiply_keys<Tile>(queries, ring.next(), lane, s[2 * i], s[2 * i + 1]);
    float shift[Tile::kTiles], sum[Tile::kTiles];
    weigh<Tile>(params.score_scale, params.lift, keys, lane, s, shift, sum);

    // O^T = V^T P^T.
    //
    // Where a product is not a number, 0 * Inf of a key that is not seen, or Inf times a part that is 0, do it again with
    // zeros for what is not finite, and add that by itself: no bit depends on a value that is not looked at.
    float o[Tile::kSteps][Tile::kTiles][4];
    Shared<Bytes16> item = shared;
    for (bool again = false;; again = true) {
      for_each_element<Tile>(o, [](float& n, int, int) { n = 0; });
      TREE_ATTN_UNROLL
      for (int i = 0; i < kLeafItems; ++i) {
        if (again)
          ring.fill_finite(item, leaf_begin, i, keys.begin, keys.end);
        else
          item = ring.next();
        multiply_values<Tile>(s[2 * i], s[2 * i + 1], item, lane, o);
      }
      bool broken = keys.is_single_key;
      for_each_element<Tile>(o, [&broken](float& n, int, int) { n *= 1 / kUnit<T>, broken = broken || !is_finite(n); });
      if (again || !__any_sync(kAllLanes, broken)) {
        if (again) {
          add_not_finite<Tile>(params.value<T>(kv_head, leaf_begin), params.v.stride[2], params.d_v, keys, s, lane, o);
        }
        break;
      }
    }

    // Hand shifts and sums to the lanes that hold the components of the same queries.
    float slot_shift[Tile::kSlots], slot_sum[Tile::kSlots];
    TREE_ATTN_UNROLL
    for (int slot = 0; slot < Tile::kSlots; ++slot) {
      const int from = (lane % 4 * 2 + slot % 2) * 4;
      slot_shift[slot] = __shfl_sync(kAllLanes, shift[slot / 2], from);
      slot_sum[slot] = __shfl_sync(kAllLanes, sum[slot / 2], from);
    }

    // Push the states into the tree.
    TREE_ATTN_UNROLL
    for (int slot = 0; slot < Tile::kSlots; ++slot) {
      LaneState<Tile::kElements> state;
      set_empty(state);
      const float e_and_sum[] = {slot_shift[slot], slot_sum[slot]};
      if (!is_empty(e_and_sum)) {
        state.shift = slot_shift[slot], state.sum = slot_sum[slot];
        TREE_ATTN_UNROLL
        for (int c = 0; c < Tile::kElements; ++c) state.n[c] = o[c / 2][slot / 2][c % 2 * 2 + slot % 2];
      }
      forests.push(subtree, slot, state);
    }
  }
  copy_async_wait<0>();
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
