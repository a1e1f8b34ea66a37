// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A team's walk over a run of positions: scores, states, and the canonical tree above them (eq. (7), section 5).
#pragma once

#include "gpu/parts/team.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Bytes of chunk `chunk` of a row of d numbers that are there, 0 to 16.
template <IsSubWarp Team>
__device__ __forceinline__ int bytes_of_chunk(int d, int lane, int chunk) {
  const int left = d * static_cast<int>(sizeof(typename Team::T)) - 16 * (chunk * Team::kLanes + lane);
  return left < 0 ? 0 : left < 16 ? left : 16;
}

/// Eight rows of an aligned array in global memory, see starts_aligned(): what a lane reads of them.
template <IsSubWarp Team>
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

/// A run in groups of eight positions, numbered from the one that its first position lies in. Small numbers, for they are
/// looked at with every group.
class Groups {
 public:
  /// @param run of one worker @param used_end behind the last key in use
  __device__ __forceinline__ Groups(Run run, std::int64_t used_end)
      : origin_(run.begin / kTogether * kTogether),
        first_in_leaf_(static_cast<int>(origin_ % kLeafKeys) / kTogether),
        begin_(static_cast<int>(run.begin - origin_)),
        end_(run.empty() ? begin_ : static_cast<int>(run.end - origin_)),
        used_end_(static_cast<int>((used_end < run.end ? used_end : run.end) - origin_)) {}

  /// Position 0 of group 0, a multiple of eight.
  __device__ __forceinline__ std::int64_t origin() const { return origin_; }
  __device__ __forceinline__ int n_groups() const { return end_ > begin_ ? (end_ + kTogether - 1) / kTogether : 0; }
  /// Which of the eight positions of a group have a key, bit by bit: rows that are not there are never read.
  __device__ __forceinline__ unsigned there(int group) const {
    return below(used_end_ - group * kTogether) & ~below(begin_ - group * kTogether);
  }
  /// Which of them belong to the run, with a key or without.
  __device__ __forceinline__ unsigned inside(int group) const {
    return below(end_ - group * kTogether) & ~below(begin_ - group * kTogether);
  }
  /// Whether the leaf of kLeafKeys positions that a group belongs to lies in the run as a whole.
  __device__ __forceinline__ bool in_whole_leaf(int group) const {
    const int leaf = (group - in_leaf(group)) * kTogether;
    return leaf >= begin_ && leaf + static_cast<int>(kLeafKeys) <= end_;
  }
  /// Place of a group in its leaf, 0 to 7.
  __device__ __forceinline__ int in_leaf(int group) const {
    return (first_in_leaf_ + group) % (static_cast<int>(kLeafKeys) / kTogether);
  }
  /// Whether the run cuts a leaf.
  __device__ __forceinline__ bool cuts_a_leaf() const {
    return end_ > begin_ && ((origin_ + begin_) % kLeafKeys != 0 || (origin_ + end_) % kLeafKeys != 0);
  }

 private:
  /// The lowest n bits of eight.
  __device__ __forceinline__ static unsigned below(int n) { return n <= 0 ? 0u : n >= kTogether ? 0xFFu : (1u << n) - 1; }

  std::int64_t origin_;
  int first_in_leaf_, begin_, end_, used_end_;
};

/// One query and one run of positions of its line.
///
/// Whole leaves of kLeafKeys positions climb in registers and reach the counter in memory once a leaf. What a shard has cut off a
/// leaf goes to the counter key by key, so that the rank that holds the other side finds its siblings.
template <IsSubWarp Team>
class Climb {
 public:
  using State = LaneState<Team::kNumbers>;

  /// @param run positions to take, a part of problem.padded(line)
  /// @param memory of the forest
  __device__ __forceinline__ Climb(const DeviceProblem& problem, std::int64_t line, std::int64_t r, Run run, float* memory)
      : lane_(static_cast<int>(threadIdx.x) % Team::kLanes),
        score_scale_(problem.score_scale),
        lone_(problem.lengths[line / problem.kv_heads] == 1),
        lift_(lone_ ? 0.0f : problem.lift),
        groups_(run, problem.in_use(line).end),
        apart_(__any_sync(kAllLanes, groups_.cuts_a_leaf()) != 0),
        forest_(memory, lane_, run.begin) {
    const auto* const q = problem.query<typename Team::T>(line, r);
    TREE_ATTN_UNROLL
    for (int c = 0; c < Team::kNumbers; ++c) {
      const int component = Team::component(lane_, c);
      q_[c] = component < problem.d_h ? problem.query_scale * widen(load_once(q + component)) : 0.0f;
    }
  }

  __device__ __forceinline__ int lane() const { return lane_; }
  __device__ __forceinline__ const Groups& groups() const { return groups_; }
  /// The most groups that a team of this warp has: all its lanes take that many steps, for they shuffle together.
  __device__ __forceinline__ int n_steps() const {
    int most = groups_.n_groups();
    TREE_ATTN_UNROLL
    for (int distance = Team::kLanes; distance < kWarp; distance *= 2) {
      const int other = __shfl_xor_sync(kAllLanes, most, distance);
      most = other > most ? other : most;
    }
    return most;
  }

  /// Takes a group. Every lane of the warp must call it, also when its team has no group left.
  /// @param key, value (i, chunk) -> Bytes16 of the row at position i of the group
  template <IsRows Key, IsRows Value>
  __device__ __forceinline__ void take(int group, const Key& key, const Value& value) {
    float s = score_of_eight<Team>(q_, key, score_scale_, lane_);
    if ((groups_.there(group) >> own_key(lane_) & 1) == 0) s = -std::numeric_limits<float>::infinity();
    float shift, weight[kTogether];
    weigh_eight<Team>(s, lone_, lift_, lane_, shift, weight);
    if (apart_) {
      float all[kTogether];
      tell_all<Team>(s, lane_, all);
      if (take_apart(group, all, value)) return;
    }
    if (group >= groups_.n_groups()) return;

    State state;
    eight_keys<Team>(shift, weight, value, state);
    const int in_leaf = groups_.in_leaf(group);
    if (registers_.push(state, in_leaf)) forest_.push({kLeafLevel, (groups_.origin() + group * kTogether) >> kLeafLevel}, state);
  }

 private:
  /// Takes the positions of a group one by one, if its leaf is not whole. @returns whether it did
  template <IsRows Value>
  __device__ __forceinline__ bool take_apart(int group, const float (&s)[kTogether], const Value& value) {
    if (groups_.in_whole_leaf(group)) return false;
    const unsigned inside = groups_.inside(group);
    for (int i = 0; i < kTogether; ++i) {
      if ((inside >> i & 1) == 0) continue;
      float score = s[0];
      TREE_ATTN_UNROLL
      for (int j = 1; j < kTogether; ++j) score = j == i ? s[j] : score;
      State state;
      one_key<Team>(score, lone_, lift_, i, value, state);
      forest_.push({0, groups_.origin() + group * kTogether + i}, state);
    }
    return true;
  }

  int lane_;
  float score_scale_;
  bool lone_;   ///< whether the sequence is one key
  float lift_;  ///< of its keys; one key needs none
  Groups groups_;
  bool apart_;  ///< whether a team of this warp has keys that it takes one by one
  float q_[Team::kNumbers];
  RegisterCounter<Team::kNumbers, kLeafLevel - kTogetherLevel> registers_;
  Counter<Team::kNumbers, Team::kLanes> forest_;
};

/// A team's walk with plain loads: eight keys, then eight values, then on.
/// @param memory of the team's forest
template <IsSubWarp Team>
__device__ __forceinline__ void climb_over(const DeviceProblem& problem, std::int64_t line, std::int64_t r, Run run, float* memory) {
  using T = typename Team::T;
  Climb<Team> climb(problem, line, r, run, memory);
  const int n_steps = climb.n_steps();
  const T* keys = problem.key<T>(line, climb.groups().origin());
  const T* values = problem.value<T>(line, climb.groups().origin());
  for (int group = 0; group < n_steps; ++group) {
    const unsigned there = climb.groups().there(group);
    climb.take(group, GlobalRows<Team>{keys, problem.k.stride[2], problem.d_h, climb.lane(), there},
               GlobalRows<Team>{values, problem.v.stride[2], problem.d_v, climb.lane(), there});
    keys += kTogether * problem.k.stride[2];
    values += kTogether * problem.v.stride[2];
  }
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
