// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A team's walk over a run of positions: scores, states, and the canonical tree above them (eq. (7), section 5).
#pragma once

#include "gpu/team.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Bytes of chunk `chunk` of a row of d numbers that are there, 0 to 16.
template <class Team>
__device__ __forceinline__ int bytes_of_chunk(int d, int lane, int chunk) {
  const int left = d * static_cast<int>(sizeof(typename Team::T)) - 16 * (chunk * Team::kLanes + lane);
  return left < 0 ? 0 : left < 16 ? left : 16;
}

/// Eight rows of an aligned array in global memory, see is_aligned(): what a lane reads of them.
template <class Team>
struct GlobalRows {
  const typename Team::T* first;  ///< row 0
  std::int64_t stride;            ///< numbers from row to row
  int d, lane;
  unsigned there;  ///< bit i: row i may be read; the others are taken for zero

  __device__ __forceinline__ Bytes16 operator()(int i, int chunk) const {
    if ((there >> i & 1) == 0 || bytes_of_chunk<Team>(d, lane, chunk) == 0) return Bytes16{};
    return load16_global(first + i * stride + Team::component(lane, chunk * kPer16<typename Team::T>));
  }
};

/// One query and one run of positions of its line.
///
/// Whole leaves of kCut positions climb in registers and reach the counter in memory once a leaf. What a shard has cut off a
/// leaf goes to the counter key by key, so that the rank that holds the other side finds its siblings.
template <class Team>
class Climb {
 public:
  static constexpr int kLeafLevel = 6;
  static_assert(kCut == std::int64_t{1} << kLeafLevel);
  using State = LaneState<Team::kNumbers>;
  using Forest = Counter<Team::kNumbers, Team::kLanes>;

  /// @param run positions to take, a part of problem.padded(line)
  /// @param memory of the forest
  __device__ Climb(const DeviceProblem& problem, std::int64_t line, std::int64_t r, Run64 run, float* memory)
      : lane_(static_cast<int>(threadIdx.x) % Team::kLanes),
        score_scale_(problem.score_scale),
        run_(run),
        used_end_(problem.in_use(line).end),
        lone_(problem.lengths[line / problem.kv_heads] == 1),
        forest_(memory, lane_, run.begin) {
    const auto* const q = problem.query<typename Team::T>(line, r);
    TREE_ATTN_UNROLL
    for (int c = 0; c < Team::kNumbers; ++c) {
      const int component = Team::component(lane_, c);
      q_[c] = component < problem.d_h ? widen(load_once(q + component)) : 0.0f;
    }
  }

  __device__ __forceinline__ int lane() const { return lane_; }
  /// Groups of eight positions that the run touches, numbered as positions / 8.
  __device__ __forceinline__ std::int64_t first_group() const { return run_.begin / kTogether; }
  __device__ __forceinline__ std::int64_t n_groups() const {
    return run_.empty() ? 0 : (run_.end + kTogether - 1) / kTogether - first_group();
  }
  /// The most groups that a team of this warp has: all its lanes take that many steps, for they shuffle together.
  __device__ __forceinline__ std::int64_t n_steps() const {
    std::int64_t most = n_groups();
    TREE_ATTN_UNROLL
    for (int distance = Team::kLanes; distance < kWarp; distance *= 2) {
      const std::int64_t other = __shfl_xor_sync(kAllLanes, most, distance);
      most = other > most ? other : most;
    }
    return most;
  }
  /// Which of the eight positions of a group have a key in this run, bit by bit: rows that are not there are never read.
  __device__ __forceinline__ unsigned there(std::int64_t group) const {
    const std::int64_t first = group * kTogether, end = run_.end < used_end_ ? run_.end : used_end_;
    unsigned bits = 0;
    TREE_ATTN_UNROLL
    for (int i = 0; i < kTogether; ++i) bits |= (first + i >= run_.begin && first + i < end ? 1u : 0u) << i;
    return bits;
  }

  /// Takes the group of eight positions. Every lane of the warp must call it, also when its team has no group left.
  /// @param key, value (i, chunk) -> Bytes16 of the row at position 8 group + i
  template <class Key, class Value>
  __device__ __forceinline__ void take(std::int64_t group, const Key& key, const Value& value) {
    float s[kTogether];
    eight_scores<Team>(q_, key, score_scale_, lane_, s);
    const std::int64_t position = group * kTogether;
    if (position >= run_.end) return;
    const unsigned keys = there(group);
    TREE_ATTN_UNROLL
    for (int i = 0; i < kTogether; ++i) {
      if ((keys >> i & 1) == 0) s[i] = -std::numeric_limits<float>::infinity();
    }

    const std::int64_t leaf = position >> kLeafLevel;
    State state;
    if (leaf << kLeafLevel >= run_.begin && (leaf + 1) << kLeafLevel <= run_.end) {
      eight_keys<Team>(s, value, state);
      if (lone_ && position == 0) only_key(s[0], value, state);
      if (registers_.push(state, group)) forest_.push({kLeafLevel, leaf}, state);
    } else {
      for (int i = 0; i < kTogether; ++i) {
        if (position + i < run_.begin || position + i >= run_.end) continue;
        float score = s[0];
        TREE_ATTN_UNROLL
        for (int j = 1; j < kTogether; ++j) score = j == i ? s[j] : score;
        one_key<Team>(score, i, value, state);
        if (lone_ && position + i == 0) only_key(score, value, state);
        forest_.push({0, position + i}, state);
      }
    }
  }

 private:
  /// The state over a sequence of one key: (s, 1, v), so that z = v to the bit.
  template <class Value>
  __device__ __forceinline__ void only_key(float s, const Value& value, State& state) const {
    if (!(state.sum > 0)) return;
    state.shift = s;
    state.sum = 1;
    TREE_ATTN_UNROLL
    for (int chunk = 0; chunk < Team::kChunks; ++chunk) {
      float v[kPer16<typename Team::T>];
      widen<typename Team::T>(value(0, chunk), v);
      TREE_ATTN_UNROLL
      for (int c = 0; c < kPer16<typename Team::T>; ++c) state.n[chunk * kPer16<typename Team::T> + c] = v[c];
    }
  }

  int lane_;
  float score_scale_;
  Run64 run_;
  std::int64_t used_end_;
  bool lone_;
  float q_[Team::kNumbers];
  RegisterCounter<Team::kNumbers, kLeafLevel - kTogetherLevel> registers_;
  Forest forest_;
};

/// A team's walk with plain loads: eight keys, then eight values, then on.
/// @param memory of the team's forest
template <class Team>
__device__ __forceinline__ void climb_over(const DeviceProblem& problem, std::int64_t line, std::int64_t r, Run64 run, float* memory) {
  using T = typename Team::T;
  Climb<Team> climb(problem, line, r, run, memory);
  const std::int64_t first = climb.first_group(), end = first + climb.n_steps();
  for (std::int64_t group = first; group < end; ++group) {
    const unsigned there = climb.there(group);
    const GlobalRows<Team> key{problem.key<T>(line, group * kTogether), problem.k.stride[2], problem.d_h, climb.lane(), there};
    const GlobalRows<Team> value{problem.value<T>(line, group * kTogether), problem.v.stride[2], problem.d_v, climb.lane(), there};
    climb.take(group, key, value);
  }
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
