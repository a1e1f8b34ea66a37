// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A warp that serves up to 8 queries at once, and its products on tensor cores, exact in the weights (eq. (7)).
///
/// Tensor cores multiply elements of 16 bits and add in F32. Keys and values are stored in 16 bits, but a weight is F32, and
/// rounding it to BF16 would cost 2^-9 where the walk on scalar cores loses 2^-23. A weight is therefore split into an
/// upper, a middle and a lower part whose sum it is:
/// - BF16 has the exponents of F32 and 8 bits: the three parts are the upper, middle and lower 8 of the 24 bits.
/// - F16 has 11 bits and few exponents: the upper part is in units of 2^-15, the other two in units of 2^-26. At most
///   2^-51 of the largest weight of the leaf is lost; a weight of at least 2^-26 keeps all its 24 bits.
///
/// Keys and components are on the long side of the 16 x 8 x 16 products S^T = K Q^T and O^T = V^T P^T, the queries on the
/// short one, in its 8 columns: each has one, and the three parts of its weights take three products.
#pragma once

#include "gpu/engine/forest.cuh"
#include "gpu/engine/launch.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// A tile of kRows queries, spread over a warp, or over four of which each has boxes of components of its own.
///
/// It is how products leave S^T [keys, columns] and O^T [components, columns] in registers: with g = lane / 4 and
/// t = 2 (lane % 4), a lane has of every 16 x 8 tile the rows g and g + 8 of the columns t and t + 1. Scores, weights and
/// states of a query are therefore with the same lanes.
/// @tparam Stored_ F16, BF16, or F8_E4M3, which is widened to BF16 in shared memory
/// @tparam kDim_ elements of a row of values, padded: 64, 128 or 256, or 512 for four warps
/// @tparam kRows_ queries, of which each has a column of the products: 8
template <class Stored_, int kDim_, int kRows_, int kWarps_ = 1>
struct MmaTile {
  using Stored = Stored_;
  using T = Multiplied<Stored>;
  static constexpr int kWarps = kWarps_, kLanes = kWarp * kWarps;
  static constexpr int kDim = kDim_, kRows = kRows_;
  static constexpr int kKeyDim = kWarps > 1 ? 576 : kDim;     ///< elements of a row of keys, padded
  static constexpr int kElements = kDim / kLanes * 4;         ///< components of one state that a lane holds
  static constexpr bool kWaitsInRegisters = kWarps > 1;       ///< whether a leaf waits there for its sibling
  static constexpr int kLaneQueries = 2;                      ///< those that a lane holds a part of the state of
  static constexpr int kBoxes = kDim / kBoxColumns / kWarps;  ///< boxes of the values of a leaf, for each warp
  static constexpr int kSteps = 4 * kBoxes;                   ///< 16 x 16 tiles of values, for each warp

  /// The query, of kRows, that one of a lane is.
  __host__ __device__ static int row(int lane, int query) { return (lane & 3) * 2 + query; }
  /// The index of a lane's part in a state: the lanes of a query side by side, the first queries first.
  __host__ __device__ static int part(int lane) { return (lane & 3) * (kLanes / 4) + (lane >> 2); }
  /// Index in the row of element c of a lane: the boxes of the warps take turns.
  __host__ __device__ static int component(int lane, int c) {
    if (kWarps == 1) return c / 2 * 16 + (lane >> 2) + c % 2 * 8;
    return (c / 8 * kWarps + (lane >> 5)) * kBoxColumns + c / 2 % 4 * 16 + (lane >> 2 & 7) + c % 2 * 8;
  }
};

/// Items of 16 keys in a leaf.
inline constexpr int kLeafItems = static_cast<int>(kLeafKeys) / 16;
/// 16-byte vectors of a row of a box, and of a box: 64 keys of 64 elements.
inline constexpr int kRowVectors = kBoxRowBytes / 16, kBoxVectors = static_cast<int>(kLeafKeys) * kRowVectors;

/// Scores of a lane, or weights, of kItems times 16 keys and kEights times eight queries, as products leave them:
/// that of key(k) for the query row(i) is at(s, i, k).
template <int kItems, int kEights>
struct LaneScores {
  using Array = float[kItems * kEights][4];
  static constexpr int kLaneQueries = 2 * kEights, kKeys = 2 * kItems;
  int lane, first_item = 0;

  __device__ __forceinline__ static float& at(Array& s, int query, int k) {
    return s[query / 2 * kItems + k / 2][k % 2 * 2 + query % 2];
  }
  __device__ __forceinline__ int key(int k) const { return 16 * (first_item + k / 2) + 8 * (k % 2) + lane / 4; }
  __device__ __forceinline__ int row(int query) const { return query / 2 * 8 + lane % 4 * 2 + query % 2; }
};
/// Scores of a leaf in a warp.
using TileScores = LaneScores<kLeafItems, 1>;
using LeafScores = TileScores::Array;

/// The vector `unit` of a row of a box.
__device__ __forceinline__ int vector_at(int row, int unit) { return row * kRowVectors + swizzled_unit(row, unit); }
/// The vector of the first 16 rows of a box that a lane points load_matrices_x4() at, for 16-element step `step` of four: of
/// the four 8 x 8 matrices of a left operand the upper left, lower left, upper right and lower right one.
__device__ __forceinline__ int matrix_vector(int lane, int step) { return vector_at(lane % 16, 2 * step + lane / 16); }
/// The vector of a lane for an operand that is loaded transposed.
__device__ __forceinline__ int transposed_matrix_vector(int lane, int step) {
  return vector_at(lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2);
}

/// The scales of a kv head with their sign at the queries, so that the largest product is the largest score. A scale of 0
/// becomes queries of 0.
template <IsTensorTile Tile>
__device__ __forceinline__ Scales tile_scales(const DecodeParams& params, std::int64_t kv_head) {
  const Scales of_head = scales_of<typename Tile::Stored>(params, kv_head);
  const float query = of_head.score < 0 ? -of_head.query : of_head.query;
  return of_head.score == 0 ? Scales{0, 1} : Scales{query, std::fabs(of_head.score)};
}

/// Two neighbours of a row of the group of a kv head, times a scale; zeros past the group and past d_h.
/// @param first_row first row of the tile, past the group too
template <class T>
__device__ __forceinline__ std::uint32_t query_pair(const DecodeParams& params, std::int64_t kv_head, std::int64_t first_row,
                                                    int row, int column, float scale) {
  const bool valid = first_row + row < params.group;
  const T* const query = params.query<T>(kv_head, valid ? first_row + row : first_row) + column;
  T pair[2] = {};
  TREE_ATTN_UNROLL
  for (int c = 0; c < 2; ++c)
    if (valid && column + c < params.d_h) pair[c] = narrow<T>(scale * widen(load_once(query + c)));
  return pack(pair[0], pair[1]);
}

/// The queries as the right operand of K Q^T, [kKeyDim, 8], see query_pair(). In registers, where there are enough of them;
/// else they stay in shared memory.
template <IsMmaTile Tile>
class TileQueries {
 public:
  static constexpr bool kInShared = Tile::kKeyDim >= 256;
  /// 16-byte vectors from row to row in shared memory: an odd number, so that 8 rows begin in different banks.
  static constexpr int kPitch = Tile::kKeyDim / 8 + 1;
  static constexpr int kVectors = kInShared ? Tile::kRows * kPitch : 0;  ///< of shared memory, for one thread group

  /// @param lane in the thread group. Four warps have a barrier after it
  __device__ __forceinline__ TileQueries(const DecodeParams& params, std::int64_t kv_head, std::int64_t first_row,
                                         Shared<Bytes16> memory, int lane) {
    const float scale = tile_scales<Tile>(params, kv_head).query;
    const auto pair_of = [&](int row, int column) {
      return query_pair<typename Tile::T>(params, kv_head, first_row, row, column, scale);
    };
    if constexpr (kInShared) {
      for (int row = 0; row < Tile::kRows; ++row) {
        if (Tile::kWarps > 1 && lane >= Tile::kKeyDim / 8) break;
        Bytes16 bytes;
        TREE_ATTN_UNROLL
        for (int i = 0; i < 4; ++i) bytes.word[i] = pair_of(row, 8 * lane + 2 * i);
        store16(memory + (row * kPitch + lane), bytes);
      }
      __syncwarp();
      matrix_ = memory + (lane % 8 * kPitch + lane % kWarp / 8);
    } else {
      TREE_ATTN_UNROLL
      for (int i = 0; i < Tile::kKeyDim / 8; ++i) registers_[i / 2][i % 2] = pair_of(lane / 4, 8 * i + lane % 4 * 2);
    }
  }
  /// The four steps that multiply a box of keys.
  __device__ __forceinline__ void get(int box, std::uint32_t (&q)[4][2]) const {
    std::uint32_t matrices[2][4];
    if constexpr (kInShared) load_matrices_x4(matrices, [&](int i) { return matrix_ + (8 * box + 4 * i); });
    TREE_ATTN_UNROLL
    for (int i = 0; i < 8; ++i) {
      if constexpr (kInShared)
        q[i / 2][i % 2] = matrices[i / 4][i % 4];
      else
        q[i / 2][i % 2] = registers_[4 * box + i / 2][i % 2];
    }
  }

 private:
  Shared<Bytes16> matrix_{};
  std::uint32_t registers_[kInShared ? 1 : Tile::kKeyDim / 16][2];
};

/// s <- s + K Q^T for the 64 elements of one box of keys.
/// @param box [16 n keys][8 vectors], swizzled @param index of the box in a row
template <IsMmaTile Tile, int n>
__device__ __forceinline__ void add_scores(const TileQueries<Tile>& queries, Shared<Bytes16> box, int index, int lane,
                                           float (&s)[n][4]) {
  std::uint32_t q[4][2];
  queries.get(index, q);
  TREE_ATTN_UNROLL
  for (int step = 0; step < 4; ++step) {
    const Shared<Bytes16> matrix = box + matrix_vector(lane, step);
    std::uint32_t k[n][4];
    load_matrices_x4(k, [&](int i) { return matrix + 16 * kRowVectors * i; });
    mma_16x8x16<typename Tile::T>(s, k, q + step);
  }
}

/// The factor of a weight in F16, and once more of the rest after its upper part. BF16 has the exponents of F32.
template <class T>
inline constexpr float kUpperUnit = 1;
template <class T>
inline constexpr float kRestUnit = 1;
template <>
inline constexpr float kUpperUnit<Half> = 0x1p15f;
template <>
inline constexpr float kRestUnit<Half> = 0x1p11f;

/// A weight as three parts: w = (upper + (middle + lower) / kRestUnit) / kUpperUnit.
struct WeightParts {
  std::uint16_t upper, middle, lower;
};
__device__ __forceinline__ WeightParts split_weight(BFloat16, float w) {
  const auto upper = [](float x) { return bits_of(x) & 0xFFFF0000u; };
  const float rest = w - float_of(upper(w)), last = rest - float_of(upper(rest));
  const auto half = [](float x) { return static_cast<std::uint16_t>(bits_of(x) >> 16); };
  return {half(w), half(rest), half(last)};
}
__device__ __forceinline__ WeightParts split_weight(Half, float w) {
  w *= kUpperUnit<Half>;
  const Half upper = narrow<Half>(w);
  const float rest = kRestUnit<Half> * (w - widen(upper));
  const Half middle = narrow<Half>(rest);
  return {upper.bits, middle.bits, narrow<Half>(rest - widen(middle)).bits};
}
/// The parts of two neighbouring weights as element i of three operands, in the order of the products: small parts first.
template <class T, int n>
__device__ __forceinline__ void split_pair(float left, float right, std::uint32_t (&part)[3][n], int i) {
  const WeightParts low = split_weight(T{}, left), high = split_weight(T{}, right);
  const auto pair = [](std::uint16_t a, std::uint16_t b) { return std::uint32_t{a} | std::uint32_t{b} << 16; };
  part[0][i] = pair(low.lower, high.lower);
  part[1][i] = pair(low.middle, high.middle);
  part[2][i] = pair(low.upper, high.upper);
}

/// The weights of a leaf as right operands of V^T P^T.
template <IsMmaTile Tile>
struct TileWeights {
  static constexpr int kParts = 3;
  std::uint32_t part[kLeafItems][kParts][2];

  __device__ __forceinline__ explicit TileWeights(const LeafScores& w) {
    TREE_ATTN_UNROLL
    for (int i = 0; i < 2 * kLeafItems; ++i)
      split_pair<typename Tile::T>(w[i / 2][i % 2 * 2], w[i / 2][i % 2 * 2 + 1], part[i / 2], i % 2);
    transpose_matrices<kLeafItems * kParts * 2>(part[0][0]);
  }
};

/// o <- o + V^T P^T for 64 components.
/// @param load (i, v): the values of 16 keys as left operands v [4][4], one for each 16 components
/// @param[in,out] o [4] tiles of 16 components
template <IsMmaTile Tile, class Load>
__device__ __forceinline__ void add_values(const TileWeights<Tile>& weights, const Load& load, float (*o)[4]) {
  using T = typename Tile::T;
  // Where the parts are in two units, the small ones are summed first.
  constexpr bool kTwoUnits = kRestUnit<T> != 1;
  const auto add = [&]<int first, int last>() {
    TREE_ATTN_UNROLL
    for (int i = 0; i < kLeafItems; ++i) {
      std::uint32_t v[4][4];
      load(i, v);
      mma_16x8x16<T, last - first>(o, v, weights.part[i] + first);
    }
  };
  if constexpr (kTwoUnits) {
    add.template operator()<0, 2>();
    TREE_ATTN_UNROLL
    for (int i = 0; i < 16; ++i) o[i / 4][i % 4] *= 1 / kRestUnit<T>;
    add.template operator()<2, 3>();
  } else {
    add.template operator()<0, 3>();
  }
}

/// Adds the products of weights and one box of values. @param box [64 keys][8 vectors], swizzled
template <IsMmaTile Tile>
__device__ __forceinline__ void add_values(const TileWeights<Tile>& weights, Shared<Bytes16> box, int lane, float (*o)[4]) {
  const auto load = [&](int i, std::uint32_t(&v)[4][4]) {
    load_matrices_x4_transposed(
        v, [&](int step) { return box + (transposed_matrix_vector(lane, step) + 16 * kRowVectors * i); });
  };
  add_values<Tile>(weights, load, o);
}

/// Component c of the state of a query of the lane.
template <IsMmaTile Tile>
__device__ __forceinline__ float tile_element(const float (&o)[Tile::kSteps][4], int query, int c) {
  constexpr float kUnit = kUpperUnit<typename Tile::T>;
  const float x = o[c / 2][c % 2 * 2 + query];
  return kUnit == 1 ? x : x * (1 / kUnit);
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
