// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A team of lanes that reads rows in chunks of 16 bytes: scores of eight keys, and their climb (eq. (7), section 5).
///
/// A row of 256 bytes is 16 lanes wide, so a warp holds two teams, each with keys of its own: a team is the smallest worker
/// that takes a run of positions and hands back a forest.
#pragma once

#include "gpu/lane_state.cuh"
#include "reference/merges_together.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFF;

/// How a row is spread: lane i holds the chunks i, i + kLanes, ... of 16 bytes, kChunks of them.
///
/// A worker, of which there is one more kind on tensor cores: lanes that take a run of positions for kRows queries. Lane i
/// holds, in each of its kSlots, kNumbers components of the state of one of them.
template <class Stored, int kLanes_, int kChunks_>
struct Team {
  using T = Stored;
  static constexpr int kLanes = kLanes_, kChunks = kChunks_;
  static constexpr int kNumbers = kChunks * kPer16<T>;  ///< numbers of a row that one lane holds
  static constexpr int kRows = 1;                        ///< queries that it serves at once
  static constexpr int kSlots = 1;                       ///< states that a lane holds a part of

  /// Which of the kRows queries a slot of a lane is about.
  __host__ __device__ static int row(int, int) { return 0; }

  /// Place in the row of number c of a lane.
  __host__ __device__ static int component(int lane, int c) {
    return (c / kPer16<T> * kLanes + lane) * kPer16<T> + c % kPer16<T>;
  }
};

/// Scores of eight neighbouring keys, for every lane of the team: s_a = score_scale q.k_a.
///
/// Each lane multiplies its own numbers; then lanes that differ in one bit add up, and as long as there are several keys each
/// of the two keeps half of them: 4 + 2 + 1 exchanges and one for every bit that is left, instead of 8 a bit. The order of the
/// additions is that of a butterfly, the same for every key.
/// @param q numbers of the query, zero behind d_h
/// @param key (i, chunk) -> Bytes16 of key i
/// @param[out] s base-two scores
template <class Team, class Key>
__device__ __forceinline__ void eight_scores(const float (&q)[Team::kNumbers], const Key& key, float score_scale, int lane,
                                    float (&s)[kTogether]) {
  // Multiply.
  float sum[kTogether];
  TREE_ATTN_UNROLL
  for (int i = 0; i < kTogether; ++i) {
    sum[i] = 0;
    TREE_ATTN_UNROLL
    for (int chunk = 0; chunk < Team::kChunks; ++chunk) {
      float k[kPer16<typename Team::T>];
      widen<typename Team::T>(key(i, chunk), k);
      TREE_ATTN_UNROLL
      for (int c = 0; c < kPer16<typename Team::T>; ++c)
        sum[i] = fused_multiply_add(q[chunk * kPer16<typename Team::T> + c], k[c], sum[i]);
    }
  }

  // Add over the lanes, halving the keys.
  TREE_ATTN_UNROLL
  for (int bit = 0; bit < kTogetherLevel; ++bit) {
    const int half = kTogether >> (bit + 1);
    const bool upper = (lane >> bit & 1) != 0;
    TREE_ATTN_UNROLL
    for (int i = 0; i < half; ++i) {
      const float mine = upper ? sum[i + half] : sum[i], theirs = upper ? sum[i] : sum[i + half];
      sum[i] = mine + __shfl_xor_sync(kAllLanes, theirs, 1 << bit);
    }
  }
  TREE_ATTN_UNROLL
  for (int distance = kTogether; distance < Team::kLanes; distance *= 2) sum[0] += __shfl_xor_sync(kAllLanes, sum[0], distance);

  // Tell everybody: key i ended with the lanes whose lowest bits are those of i, mirrored.
  const int first = static_cast<int>(threadIdx.x) % kWarp - lane;
  TREE_ATTN_UNROLL
  for (int i = 0; i < kTogether; ++i) {
    const int mirrored = (i & 1) << 2 | (i & 2) | (i & 4) >> 2;
    s[i] = score_scale * __shfl_sync(kAllLanes, sum[0], first + mirrored);
  }
}

/// The state of one key, as set_key() of reference/state.hpp has it.
template <class Team, class Value>
__device__ __forceinline__ void one_key(float s, int i, const Value& value, LaneState<Team::kNumbers>& state) {
  set_empty(state);
  if (s == -std::numeric_limits<float>::infinity()) return;
  state.shift = key_shift(s);
  state.sum = key_weight(s);
  TREE_ATTN_UNROLL
  for (int chunk = 0; chunk < Team::kChunks; ++chunk) {
    float v[kPer16<typename Team::T>];
    widen<typename Team::T>(value(i, chunk), v);
    TREE_ATTN_UNROLL
    for (int c = 0; c < kPer16<typename Team::T>; ++c) state.n[chunk * kPer16<typename Team::T> + c] = multiply(state.sum, v[c]);
  }
}

/// The state of eight neighbouring keys, the first at a multiple of eight.
///
/// A key with a score of -inf is not seen: its value is not looked at, and stands for -0, which changes no sum.
/// @param value (i, chunk) -> Bytes16 of the value of key i
template <class Team, class Value>
__device__ __forceinline__ void eight_keys(const float (&s)[kTogether], const Value& value, LaneState<Team::kNumbers>& state) {
  using T = typename Team::T;
  float shift[kTogether], weight[kTogether];
  TREE_ATTN_UNROLL
  for (int i = 0; i < kTogether; ++i) shift[i] = key_shift(s[i]), weight[i] = key_weight(s[i]);
  const MergesTogether<float> merges(shift);
  state.shift = shift[0];
  state.sum = merges.value([&](int i) { return weight[i]; });
  TREE_ATTN_UNROLL
  for (int chunk = 0; chunk < Team::kChunks; ++chunk) {
    float v[kTogether][kPer16<T>];
    TREE_ATTN_UNROLL
    for (int i = 0; i < kTogether; ++i) {
      const bool seen = s[i] != -std::numeric_limits<float>::infinity();
      widen<T>(seen ? value(i, chunk) : Bytes16{}, v[i]);
      if (!seen) weight[i] = -0.0f;
    }
    TREE_ATTN_UNROLL
    for (int c = 0; c < kPer16<T>; ++c)
      state.n[chunk * kPer16<T> + c] = merges.value([&](int i) { return multiply(weight[i], v[i][c]); });
  }
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
