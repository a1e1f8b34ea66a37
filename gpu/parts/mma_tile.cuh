// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A warp that serves up to 16 queries at once, and its products on tensor cores, exact in the weights (eq. (7)).
///
/// Tensor cores multiply numbers of 16 bits, and the sums are of F32. Keys and values are stored in 16 bits; a weight is of
/// F32, and rounding it would cost 2^-9 where the scalar kernels lose 2^-23. So a weight goes in as three parts whose sum it
/// is, with one product each:
/// - BF16 has the exponents of F32 and 8 bits: the upper, middle and lower 8 of the 24 bits.
/// - F16 has 11 bits and few exponents: 2^15 p is rounded, 2^12 times the rest too, 2^12 times the rest of that too. What is
///   lost is below 2^-64 of the largest weight, all 24 bits of a weight are kept down to 2^-40 of it.
///
/// The products themselves stay within what memory leaves them. For 16 keys and d = 128, 16 queries take 16 products of
/// 16 x 8 x 16 for the scores and 3 x 16 for the values: 4 a key. At 8 cycles each that is 512 cycles of one of the four
/// tensor cores of a multiprocessor, which get 8 KiB from memory in about 1700 cycles (4.4 TB/s, 132 multiprocessors, 1.75
/// GHz, a quarter each). Rounding the weights would save 256 of them.
#pragma once

#include "gpu/parts/tile_ring.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// How the states of 8 kTiles queries are spread over a warp.
///
/// It is how products leave O^T [d_v, queries] = V^T P^T in registers: with g = lane / 4 and t = 2 (lane % 4), a lane has of
/// every 16 x 8 tile the components g and g + 8 of the queries t and t + 1.
/// @tparam kDim_ numbers of a row of keys or values, padded: 64, 128 or 256
/// @tparam kTiles_ 1 or 2: tiles of 8 queries
template <class Stored, int kDim_, int kTiles_>
struct MmaTile {
  using T = Stored;
  static constexpr int kLanes = kWarp;
  static constexpr int kDim = kDim_, kTiles = kTiles_;
  static constexpr int kElements = kDim / 8;  ///< components of one state that a lane holds
  static constexpr int kRows = 8 * kTiles;    ///< queries that it serves at once
  static constexpr int kSlots = 2 * kTiles;   ///< states that a lane holds a part of
  static constexpr int kWarps =
      kDim < 256 ? 8 : 4;                   ///< of a block, if they fit: two a scheduler, that one waits while one works
  static constexpr int kSteps = kDim / 16;  ///< 16 x 16 tiles across a row
  /// 16-byte vectors from row to row in shared memory: an odd number, so that 8 neighbouring rows begin in different banks.
  static constexpr int kPitch = kDim / 8 + 1;

  /// Which of the kRows queries a slot of a lane is about.
  __host__ __device__ static int row(int lane, int slot) { return slot / 2 * 8 + lane % 4 * 2 + slot % 2; }
  /// Index in the row of element c of a lane.
  __host__ __device__ static int component(int lane, int c) { return c / 2 * 16 + lane / 4 + c % 2 * 8; }
};

/// The row of a tile of 16 x 16 that a lane points load_matrix_x4() at: 8 x 8 matrices, the left and the right of the upper
/// 8 rows, then those of the lower 8.
template <IsMmaTile Tile>
__device__ __forceinline__ int matrix_row(int lane) {
  return (lane / 16 * 8 + lane % 8) * Tile::kPitch + lane / 8 % 2;
}

/// Stored elements times a power of two, which rounds only what falls below the smallest normal number.
template <class T>
__device__ __forceinline__ Bytes16 times(const Bytes16& elements, float factor) {
  float wide[kPer16<T>];
  widen<T>(elements, wide);
  T scaled[kPer16<T>];
  TREE_ATTN_UNROLL
  for (int c = 0; c < kPer16<T>; ++c) scaled[c] = narrow<T>(factor * wide[c]);
  Bytes16 bytes;
  std::memcpy(&bytes, scaled, sizeof bytes);
  return bytes;
}

/// The queries times query_scale as the left operand of Q K^T, [16, kDim]; zero past the group and past d_h. In registers,
/// where there are enough of them; else they stay in shared memory.
template <IsMmaTile Tile>
class TileQueries {
 public:
  static constexpr bool kInShared = Tile::kDim * Tile::kTiles >= 256;
  static constexpr int kVectors = 16 * Tile::kPitch;  ///< of shared memory, from now on or just for loading

  __device__ __forceinline__ TileQueries(const DecodeParams& params, std::int64_t kv_head, std::int64_t first_row,
                                         Shared<Bytes16> memory, int lane)
      : matrix_(memory + matrix_row<Tile>(lane)) {
    using T = typename Tile::T;
    constexpr int kVectorsPerRow = Tile::kDim / kPer16<T>;
    for (int i = lane; i < 16 * kVectorsPerRow; i += kWarp) {
      const int row = i / kVectorsPerRow, left = params.d_h - i % kVectorsPerRow * kPer16<T>;
      const bool valid = row < Tile::kRows && first_row + row < params.group;
      const T* const query = params.query<T>(kv_head, valid ? first_row + row : first_row);
      const Bytes16 elements = load_unaligned16(query + i % kVectorsPerRow * kPer16<T>, valid ? left : 0);
      store16(memory + (row * Tile::kPitch + i % kVectorsPerRow), times<T>(elements, params.query_scale));
    }
    __syncwarp();
    if constexpr (!kInShared) {
      TREE_ATTN_UNROLL
      for (int step = 0; step < Tile::kSteps; ++step) load(step, registers_[step]);
      __syncwarp();
    }
  }
  /// The numbers [16, 16] of a step.
  __device__ __forceinline__ void get(int step, std::uint32_t (&q)[4]) const {
    if constexpr (kInShared) {
      load(step, q);
    } else {
      TREE_ATTN_UNROLL
      for (int c = 0; c < 4; ++c) q[c] = registers_[step][c];
    }
  }

 private:
  __device__ __forceinline__ void load(int step, std::uint32_t (&q)[4]) const {
    std::uint32_t matrices[4];
    load_matrix_x4(matrices, matrix_ + 2 * step);
    q[0] = matrices[0], q[1] = Tile::kTiles > 1 ? matrices[2] : 0, q[2] = matrices[1],
    q[3] = Tile::kTiles > 1 ? matrices[3] : 0;
  }

  Shared<Bytes16> matrix_;
  std::uint32_t registers_[kInShared ? 1 : Tile::kSteps][4];
};

/// q.k of 16 keys: s[x][c] is that of key 8x + t + c % 2 with query g + c / 2 * 8.
/// @param item [16][kPitch] vectors of keys
template <IsMmaTile Tile>
__device__ __forceinline__ void multiply_keys(const TileQueries<Tile>& queries, Shared<Bytes16> item, int lane,
                                              float (&s_upper)[4], float (&s_lower)[4]) {
  TREE_ATTN_UNROLL
  for (int c = 0; c < 4; ++c) s_upper[c] = s_lower[c] = 0;
  TREE_ATTN_UNROLL
  for (int step = 0; step < Tile::kSteps; ++step) {
    std::uint32_t q[4], k[4];
    queries.get(step, q);
    load_matrix_x4(k, item + (matrix_row<Tile>(lane) + 2 * step));
    mma_16x8x16<typename Tile::T>(s_upper, q, {k[0], k[1]});
    mma_16x8x16<typename Tile::T>(s_lower, q, {k[2], k[3]});
  }
}

/// Parts of a weight, and the unit in which O^T is summed.
inline constexpr int kParts = 3;
template <class T>
inline constexpr float kUnit = 1;
template <>
inline constexpr float kUnit<Half> = 0x1p15f;
/// What F16 multiplies the rest by, so that it stays clear of the smallest numbers.
inline constexpr float kRestUnit = 0x1p12f;

/// Two neighbouring weights as parts, the largest first: in units of 1, or for F16 in units of 2^-15, 2^-27, 2^-39.
__device__ __forceinline__ void split_weights(BFloat16, float low, float high, std::uint32_t (&parts)[kParts]) {
  TREE_ATTN_UNROLL
  for (int part = 0; part < kParts; ++part) {
    const std::uint32_t low_bits = bits_of(low) & 0xFFFF0000u, high_bits = bits_of(high) & 0xFFFF0000u;
    parts[part] = low_bits >> 16 | high_bits;
    low -= float_of(low_bits), high -= float_of(high_bits);
  }
}
__device__ __forceinline__ void split_weights(Half, float low, float high, std::uint32_t (&parts)[kParts]) {
  low *= kUnit<Half>, high *= kUnit<Half>;
  TREE_ATTN_UNROLL
  for (int part = 0; part < kParts; ++part) {
    const Half low_part = narrow<Half>(low), high_part = narrow<Half>(high);
    parts[part] = pack(low_part, high_part);
    low = kRestUnit * (low - widen(low_part)), high = kRestUnit * (high - widen(high_part));
  }
}

/// o <- o + V^T P^T for 16 components, 16 keys and 8 queries. @param p parts of the upper 8 keys' weights, and of the lower
__device__ __forceinline__ void add_products(BFloat16, const std::uint32_t (&v)[4], const std::uint32_t (&p)[2][kParts],
                                             float (&o)[4]) {
  TREE_ATTN_UNROLL
  for (int part = kParts - 1; part >= 0; --part) mma_16x8x16<BFloat16>(o, v, {p[0][part], p[1][part]});
}
__device__ __forceinline__ void add_products(Half, const std::uint32_t (&v)[4], const std::uint32_t (&p)[2][kParts],
                                             float (&o)[4]) {
  float rest[4] = {0, 0, 0, 0};
  TREE_ATTN_UNROLL
  for (int part = kParts - 1; part > 0; --part) {
    mma_16x8x16<Half>(rest, v, {p[0][part], p[1][part]});
    TREE_ATTN_UNROLL
    for (int c = 0; c < 4; ++c) rest[c] *= 1 / kRestUnit;
  }
  TREE_ATTN_UNROLL
  for (int c = 0; c < 4; ++c) o[c] += rest[c];
  mma_16x8x16<Half>(o, v, {p[0][0], p[1][0]});
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
