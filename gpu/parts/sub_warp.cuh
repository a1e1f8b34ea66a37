// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A sub-warp of lanes that reads rows in vectors of 16 bytes: scores and states of eight keys (eq. (7), section 5).
///
/// A row of 256 bytes is 16 lanes wide, so a warp holds two sub-warps, each with keys of its own: a sub-warp is the smallest
/// worker that takes a range of positions and hands back a forest.
#pragma once

#include "gpu/parts/lane_state.cuh"
#include "gpu/parts/worker.cuh"
#include "reference/state/state.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Neighbouring keys that a sub-warp computes together, the first at a multiple of eight, and the level of their subtree.
inline constexpr int kKeysPerStep = 8, kKeyStepLevel = 3;

/// How a row is spread: lane i holds the vectors i, i + kLanes, ... of 16 bytes, kVectorsPerLane of them.
template <class Stored, int kLanes_, int kVectorsPerLane_>
struct SubWarp {
  using T = Stored;
  static constexpr int kLanes = kLanes_, kVectorsPerLane = kVectorsPerLane_;
  static constexpr int kElements = kVectorsPerLane * kPer16<T>;  ///< numbers of a row that one lane holds
  static constexpr int kRows = 1;                                ///< queries that it serves at once
  static constexpr int kSlots = 1;                               ///< states that a lane holds a part of

  /// Which of the kRows queries a slot of a lane is about.
  __host__ __device__ static int row(int, int) { return 0; }

  /// Index in the row of element c of a lane.
  __host__ __device__ static int component(int lane, int c) {
    return (c / kPer16<T> * kLanes + lane) * kPer16<T> + c % kPer16<T>;
  }
};

/// Whether x is a number: neither Inf nor NaN.
__device__ __forceinline__ bool is_finite(float x) { return std::fabs(x) <= std::numeric_limits<float>::max(); }

/// n elements from any address, and zeros after them; zeros also for what is not finite, if only finite ones are wanted.
template <class T>
__device__ __forceinline__ Bytes16 load_unaligned16(const T* from, int n, bool only_finite = false) {
  T elements[kPer16<T>] = {};
  TREE_ATTN_UNROLL
  for (int c = 0; c < kPer16<T>; ++c) {
    if (c >= n) continue;
    const T x = load_once(from + c);
    if (!only_finite || is_finite(widen(x))) elements[c] = x;
  }
  Bytes16 bytes;
  std::memcpy(&bytes, elements, sizeof bytes);
  return bytes;
}

/// Which of eight keys the sum that a lane ends with is of: that of its lowest bits, mirrored.
__device__ __forceinline__ int key_of_lane(int lane) { return (lane & 1) << 2 | (lane & 2) | (lane & 4) >> 2; }

/// The score s_a = score_scale q.k_a of one of eight neighbouring keys: that of key_of_lane().
///
/// Each lane multiplies its own numbers; then lanes that differ in one bit add up, and as long as there are several keys
/// each of the two keeps half of them: 4 + 2 + 1 exchanges and one for every bit that is left, instead of 8 a bit. The order
/// of the additions is that of a butterfly, the same for every key.
/// @param q elements of the query times query_scale, zero past d_h
/// @param key (i, vector) -> Bytes16 of key i
/// @paper{eq_7, eq. (7)}
template <IsSubWarp SubWarp, IsRows Key>
__device__ __forceinline__ float score_of_eight(const float (&q)[SubWarp::kElements], const Key& key, float score_scale,
                                                int lane) {
  using T = typename SubWarp::T;
  // Multiply.
  float sum[kKeysPerStep];
  TREE_ATTN_UNROLL
  for (int i = 0; i < kKeysPerStep; ++i) {
    sum[i] = 0;
    TREE_ATTN_UNROLL
    for (int vector = 0; vector < SubWarp::kVectorsPerLane; ++vector) {
      float k[kPer16<T>];
      widen<T>(key(i, vector), k);
      TREE_ATTN_UNROLL
      for (int c = 0; c < kPer16<T>; ++c) sum[i] = fused_multiply_add(q[vector * kPer16<T> + c], k[c], sum[i]);
    }
  }

  // Add over the lanes, halving the keys.
  TREE_ATTN_UNROLL
  for (int bit = 0; bit < kKeyStepLevel; ++bit) {
    const int half = kKeysPerStep >> (bit + 1);
    const bool upper = (lane >> bit & 1) != 0;
    TREE_ATTN_UNROLL
    for (int i = 0; i < half; ++i) {
      const float mine = upper ? sum[i + half] : sum[i], theirs = upper ? sum[i] : sum[i + half];
      sum[i] = mine + __shfl_xor_sync(kAllLanes, theirs, 1 << bit);
    }
  }
  TREE_ATTN_UNROLL
  for (int distance = kKeysPerStep; distance < SubWarp::kLanes; distance *= 2)
    sum[0] += __shfl_xor_sync(kAllLanes, sum[0], distance);
  return score_scale * sum[0];
}

/// Tells all lanes of a sub-warp what each has of its key_of_lane().
template <IsSubWarp SubWarp>
__device__ __forceinline__ void broadcast_scores(float own, int lane, float (&all)[kKeysPerStep]) {
  const int first = static_cast<int>(threadIdx.x) % kWarp - lane;
  TREE_ATTN_UNROLL
  for (int i = 0; i < kKeysPerStep; ++i) all[i] = __shfl_sync(kAllLanes, own, first + key_of_lane(i));
}

/// A weight of -0 marks a key that is not seen, whose value is not looked at.
__device__ __forceinline__ bool is_seen(float weight) { return bits_of(weight) != 0x80000000u; }

/// e = ceil(s) and 2^(s - e), or what single_key() makes of them.
__device__ __forceinline__ WeighedKey<float> weigh_key(float s, bool is_single_key) {
  const WeighedKey<float> key{key_shift(s), key_weight(s)};
  return is_single_key ? single_key(s, key) : key;
}

/// The weights of eight neighbouring keys, brought to one shift: e = max e_a + lift, and 2^(s_a - e_a) 2^(e_a - e).
///
/// Each lane weighs one key. Bringing all eight to the largest shift at once is what the seven merges above them do one by
/// one: a power of two passes through additions without changing a rounding, unless numbers fall below the smallest normal.
/// @param s score of key_of_lane() @param is_single_key whether the sequence is one key
/// @param lift see set_key(); 0 for the only key, whose shift is no whole number
/// @param[out] shift e
/// @param[out] weight of all eight keys; -0 for one that is not seen
template <IsSubWarp SubWarp>
__device__ __forceinline__ void weigh_eight(float s, bool is_single_key, float lift, int lane, float& shift,
                                            float (&weight)[kKeysPerStep]) {
  const WeighedKey<float> own = weigh_key(s, is_single_key);
  shift = own.shift;
  TREE_ATTN_UNROLL
  for (int distance = 1; distance < kKeysPerStep; distance *= 2) {
    const float other = __shfl_xor_sync(kAllLanes, shift, distance);
    shift = other > shift ? other : shift;
  }
  shift += lift;
  // Where own - shift is NaN, the weight is NaN already.
  const bool seen = s != -std::numeric_limits<float>::infinity();
  broadcast_scores<SubWarp>(seen ? multiply(own.weight, pow2(own.shift - shift)) : -0.0f, lane, weight);
}

/// Sum of eight numbers, neighbour with neighbour.
__device__ __forceinline__ float sum_of_eight(const float (&x)[kKeysPerStep]) {
  return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

/// The state of eight neighbouring keys, the first at a multiple of eight: D and n as sums of their weights and values.
/// @param value (i, vector) -> Bytes16 of the value of key i
/// @paper{eq_2, eq. (2)}
/// @paper{eq_3, eq. (3)}
template <IsSubWarp SubWarp, IsRows Value>
__device__ __forceinline__ void eight_keys(float shift, const float (&weight)[kKeysPerStep], const Value& value,
                                           LaneState<SubWarp::kElements>& state) {
  using T = typename SubWarp::T;
  state.shift = shift;
  float size[kKeysPerStep];
  TREE_ATTN_UNROLL
  for (int i = 0; i < kKeysPerStep; ++i) size[i] = std::fabs(weight[i]);
  state.sum = sum_of_eight(size);
  TREE_ATTN_UNROLL
  for (int vector = 0; vector < SubWarp::kVectorsPerLane; ++vector) {
    float v[kKeysPerStep][kPer16<T>];
    TREE_ATTN_UNROLL
    for (int i = 0; i < kKeysPerStep; ++i) widen<T>(is_seen(weight[i]) ? value(i, vector) : Bytes16{}, v[i]);
    TREE_ATTN_UNROLL
    for (int c = 0; c < kPer16<T>; ++c) {
      float product[kKeysPerStep];
      TREE_ATTN_UNROLL
      for (int i = 0; i < kKeysPerStep; ++i) product[i] = multiply(weight[i], v[i][c]);
      state.n[vector * kPer16<T> + c] = sum_of_eight(product);
    }
  }
}

/// The state of one key, as set_key() of reference/state/state.hpp has it.
/// @param is_single_key whether the sequence is one key @param lift see weigh_eight()
/// @param value (i, vector) -> Bytes16 of the value of key i
template <IsSubWarp SubWarp, IsRows Value>
__device__ __forceinline__ void one_key(float s, bool is_single_key, float lift, int i, const Value& value,
                                        LaneState<SubWarp::kElements>& state) {
  set_empty(state);
  if (s == -std::numeric_limits<float>::infinity()) return;
  const WeighedKey<float> key = weigh_key(s, is_single_key);
  state.shift = key.shift + lift;
  state.sum = multiply(key.weight, pow2(-lift));
  TREE_ATTN_UNROLL
  for (int vector = 0; vector < SubWarp::kVectorsPerLane; ++vector) {
    float v[kPer16<typename SubWarp::T>];
    widen<typename SubWarp::T>(value(i, vector), v);
    TREE_ATTN_UNROLL
    for (int c = 0; c < kPer16<typename SubWarp::T>; ++c)
      state.n[vector * kPer16<typename SubWarp::T> + c] = multiply(state.sum, v[c]);
  }
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
