// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A sub-warp's pass over a range of positions: scores, states, and the canonical tree above them (eq. (7), section
/// 5).
#pragma once

#include "gpu/parts/sub_warp.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Bytes of vector `vector` of a row of d numbers that are there, 0 to 16.
template <IsSubWarp SubWarp>
__device__ __forceinline__ int bytes_of_vector(int d, int lane, int vector) {
  const int left = d * static_cast<int>(sizeof(typename SubWarp::T)) - 16 * (vector * SubWarp::kLanes + lane);
  return left < 0 ? 0 : left < 16 ? left : 16;
}

/// Eight rows of an aligned array in global memory, see starts_aligned(): what a lane reads of them.
template <IsSubWarp SubWarp>
struct GlobalRows {
  const typename SubWarp::T* first;  ///< row 0
  std::int64_t stride;               ///< numbers from row to row
  int d, lane;
  unsigned valid;  ///< bit i: row i may be read; the others are taken for zero

  __device__ __forceinline__ Bytes16 operator()(int i, int vector) const {
    if ((valid >> i & 1) == 0 || bytes_of_vector<SubWarp>(d, lane, vector) == 0) return Bytes16{};
    return load16_global(first + i * stride + SubWarp::component(lane, vector * kPer16<typename SubWarp::T>));
  }
};

/// A range in steps of eight positions, numbered from the one that its first position lies in. Small numbers, for they are
/// looked at with every step.
class KeySteps {
 public:
  /// @param range of one worker @param used_end behind the last key in use
  __device__ __forceinline__ KeySteps(KeyRange range, std::int64_t used_end)
      : origin_(range.begin / kKeysPerStep * kKeysPerStep),
        first_in_leaf_(static_cast<int>(origin_ % kLeafKeys) / kKeysPerStep),
        begin_(static_cast<int>(range.begin - origin_)),
        end_(range.empty() ? begin_ : static_cast<int>(range.end - origin_)),
        used_end_(static_cast<int>((used_end < range.end ? used_end : range.end) - origin_)) {}

  /// Position 0 of step 0, a multiple of eight.
  __device__ __forceinline__ std::int64_t origin() const { return origin_; }
  __device__ __forceinline__ int size() const { return end_ > begin_ ? (end_ + kKeysPerStep - 1) / kKeysPerStep : 0; }
  /// Which of the eight positions of a step have a key, bit by bit: rows that are not there are never read.
  __device__ __forceinline__ unsigned valid(int step) const {
    return below(used_end_ - step * kKeysPerStep) & ~below(begin_ - step * kKeysPerStep);
  }
  /// Which of them belong to the range, with a key or without.
  __device__ __forceinline__ unsigned inside(int step) const {
    return below(end_ - step * kKeysPerStep) & ~below(begin_ - step * kKeysPerStep);
  }
  /// Whether the leaf of kLeafKeys positions that a step belongs to lies in the range as a whole.
  __device__ __forceinline__ bool in_whole_leaf(int step) const {
    const int leaf = (step - in_leaf(step)) * kKeysPerStep;
    return leaf >= begin_ && leaf + static_cast<int>(kLeafKeys) <= end_;
  }
  /// Index of a step in its leaf, 0 to 7.
  __device__ __forceinline__ int in_leaf(int step) const {
    return (first_in_leaf_ + step) % (static_cast<int>(kLeafKeys) / kKeysPerStep);
  }
  /// Whether the range cuts a leaf.
  __device__ __forceinline__ bool cuts_a_leaf() const {
    return end_ > begin_ && ((origin_ + begin_) % kLeafKeys != 0 || (origin_ + end_) % kLeafKeys != 0);
  }

 private:
  /// The lowest n bits of eight.
  __device__ __forceinline__ static unsigned below(int n) { return n <= 0 ? 0u : n >= kKeysPerStep ? 0xFFu : (1u << n) - 1; }

  std::int64_t origin_;
  int first_in_leaf_, begin_, end_, used_end_;
};

/// One query and one range of positions of its kv head.
///
/// Whole leaves of kLeafKeys positions climb in registers and reach the forest in memory once a leaf. What a shard has cut
/// off a leaf goes to the forest key by key, so that the rank that holds the other side finds its siblings.
template <IsSubWarp SubWarp>
class KeyAccumulator {
 public:
  using State = LaneState<SubWarp::kElements>;

  /// @param range positions to take, a part of params.padded(kv_head)
  /// @param memory of the forest
  __device__ __forceinline__ KeyAccumulator(const DecodeParams& params, std::int64_t kv_head, std::int64_t r, KeyRange range,
                                            float* memory)
      : lane_(static_cast<int>(threadIdx.x) % SubWarp::kLanes),
        score_scale_(params.score_scale),
        is_single_key_(params.lengths[kv_head / params.kv_heads] == 1),
        lift_(is_single_key_ ? 0.0f : params.lift),
        key_steps_(range, params.in_use(kv_head).end),
        partial_leaf_(__any_sync(kAllLanes, key_steps_.cuts_a_leaf()) != 0),
        forest_(memory, lane_, range.begin) {
    const auto* const q = params.query<typename SubWarp::T>(kv_head, r);
    TREE_ATTN_UNROLL
    for (int c = 0; c < SubWarp::kElements; ++c) {
      const int component = SubWarp::component(lane_, c);
      q_[c] = component < params.d_h ? params.query_scale * widen(load_once(q + component)) : 0.0f;
    }
  }

  __device__ __forceinline__ int lane() const { return lane_; }
  __device__ __forceinline__ const KeySteps& key_steps() const { return key_steps_; }
  /// The most steps that a sub-warp of this warp has: all its lanes take that many steps, for they shuffle together.
  __device__ __forceinline__ int n_steps() const {
    int most = key_steps_.size();
    TREE_ATTN_UNROLL
    for (int distance = SubWarp::kLanes; distance < kWarp; distance *= 2) {
      const int other = __shfl_xor_sync(kAllLanes, most, distance);
      most = other > most ? other : most;
    }
    return most;
  }

  /// Takes a step. Every lane of the warp must call it, also when its sub-warp has no step left.
  /// @param key, value (i, vector) -> Bytes16 of the row at position i of the step
  template <IsRows Key, IsRows Value>
  __device__ __forceinline__ void take(int step, const Key& key, const Value& value) {
    float s = score_of_eight<SubWarp>(q_, key, score_scale_, lane_);
    if ((key_steps_.valid(step) >> key_of_lane(lane_) & 1) == 0) s = -std::numeric_limits<float>::infinity();
    float shift, weight[kKeysPerStep];
    weigh_eight<SubWarp>(s, is_single_key_, lift_, lane_, shift, weight);
    if (partial_leaf_) {
      float all[kKeysPerStep];
      broadcast_scores<SubWarp>(s, lane_, all);
      if (take_partial_leaf(step, all, value)) return;
    }
    if (step >= key_steps_.size()) return;

    State state;
    eight_keys<SubWarp>(shift, weight, value, state);
    const int in_leaf = key_steps_.in_leaf(step);
    if (registers_.push(state, in_leaf))
      forest_.push({kLeafLevel, (key_steps_.origin() + step * kKeysPerStep) >> kLeafLevel}, state);
  }

 private:
  /// Takes the positions of a step one by one, if its leaf is not whole. @returns whether it did
  template <IsRows Value>
  __device__ __forceinline__ bool take_partial_leaf(int step, const float (&s)[kKeysPerStep], const Value& value) {
    if (key_steps_.in_whole_leaf(step)) return false;
    const unsigned inside = key_steps_.inside(step);
    for (int i = 0; i < kKeysPerStep; ++i) {
      if ((inside >> i & 1) == 0) continue;
      float score = s[0];
      TREE_ATTN_UNROLL
      for (int j = 1; j < kKeysPerStep; ++j) score = j == i ? s[j] : score;
      State state;
      one_key<SubWarp>(score, is_single_key_, lift_, i, value, state);
      forest_.push({0, key_steps_.origin() + step * kKeysPerStep + i}, state);
    }
    return true;
  }

  int lane_;
  float score_scale_;
  bool is_single_key_;  ///< whether the sequence is one key
  float lift_;          ///< of its keys; one key needs none
  KeySteps key_steps_;
  bool partial_leaf_;  ///< whether a sub-warp of this warp has keys that it takes one by one
  float q_[SubWarp::kElements];
  RegisterForest<SubWarp::kElements, kLeafLevel - kKeyStepLevel> registers_;
  LaneForest<SubWarp::kElements, SubWarp::kLanes> forest_;
};

/// A sub-warp's pass with plain loads: eight keys, then eight values, then on.
/// @param memory of the sub-warp's forest
template <IsSubWarp SubWarp>
__device__ __forceinline__ void accumulate_keys(const DecodeParams& params, std::int64_t kv_head, std::int64_t r,
                                                KeyRange range, float* memory) {
  using T = typename SubWarp::T;
  KeyAccumulator<SubWarp> accumulator(params, kv_head, r, range, memory);
  const int n_steps = accumulator.n_steps();
  const T* keys = params.key<T>(kv_head, accumulator.key_steps().origin());
  const T* values = params.value<T>(kv_head, accumulator.key_steps().origin());
  for (int step = 0; step < n_steps; ++step) {
    const unsigned valid = accumulator.key_steps().valid(step);
    accumulator.take(step, GlobalRows<SubWarp>{keys, params.k.stride[2], params.d_h, accumulator.lane(), valid},
                     GlobalRows<SubWarp>{values, params.v.stride[2], params.d_v, accumulator.lane(), valid});
    keys += kKeysPerStep * params.k.stride[2];
    values += kKeysPerStep * params.v.stride[2];
  }
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
