// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The part of a state that one lane holds, and the binary counter it climbs (section 5).
///
/// A state of 2 + d_v numbers is spread over the lanes of a team: each has the shift and the sum, and some components of n.
/// All of them merge in step without a word to each other, for a merge is the same few operations on every component.
#pragma once

#include "gpu/device.hpp"
#include "gpu/problem.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Shift, sum and kNumbers components of n, in registers.
template <int kNumbers>
struct LaneState {
  float shift, sum, n[kNumbers];
};

template <int kNumbers>
__device__ __forceinline__ void set_empty(LaneState<kNumbers>& state) {
  state.shift = -std::numeric_limits<float>::infinity();
  state.sum = 0;
  TREE_ATTN_UNROLL
  for (int c = 0; c < kNumbers; ++c) state.n[c] = -0.0f;
}

/// left <- merge(left, right): that of reference/state.hpp, component by component.
template <int kNumbers>
__device__ __forceinline__ void merge(LaneState<kNumbers>& left, const LaneState<kNumbers>& right) {
  const Rescale<float> r = rescale(left.shift, right.shift);
  left.shift = r.shift;
  left.sum = merge_number(r, left.sum, right.sum);
  TREE_ATTN_UNROLL
  for (int c = 0; c < kNumbers; ++c) left.n[c] = merge_number(r, left.n[c], right.n[c]);
}

/// The lowest levels of a binary counter, in registers: 2^kLevels states go in for one that comes out.
template <int kNumbers, int kLevels>
class RegisterCounter {
 public:
  /// Takes the state at `index` of the lowest level. @returns whether `state` now is that of a subtree kLevels higher
  ///
  /// Level by level at compile time: an index that is only known at run time would put the states into memory.
  template <int kLevel = 0>
  __device__ __forceinline__ bool push(LaneState<kNumbers>& state, std::int64_t index) {
    if constexpr (kLevel == kLevels) {
      return true;
    } else {
      if ((index >> kLevel & 1) == 0) {
        parked_[kLevel] = state;
        return false;
      }
      merge(parked_[kLevel], state);
      state = parked_[kLevel];
      return push<kLevel + 1>(state, index);
    }
  }

 private:
  LaneState<kNumbers> parked_[kLevels];
};

/// A binary counter in global memory: the forest of a run of positions, one lane's part of it.
///
/// At every level at most one left child waits for its sibling, and at most one right child has none in the run, so a subtree
/// has its place by its level and by whether its index is odd. The lanes of a team lie side by side and never look at each
/// other's numbers: no barrier is needed while a counter is filled.
template <int kNumbers, int kLanes>
class Counter {
 public:
  /// Floats of a counter for all lanes of a team.
  /// @param longest positions of the longest run it may hold
  __host__ __device__ static std::int64_t n_floats(std::int64_t longest) {
    std::int64_t n = 2;
    while (longest >>= 1) n += 2;
    return n * kPlace;
  }

  /// @param memory of the team
  /// @param begin first position of the run: a subtree on the left of it is not here
  __device__ Counter(float* memory, int lane, std::int64_t begin) : memory_(memory + lane), begin_(begin) {}

  /// Appends a subtree on the right of all that is held, and merges while there is a sibling.
  __device__ __forceinline__ void push(Subtree at, LaneState<kNumbers>& state) {
    while ((at.index & 1) == 1 && at.parent().begin() >= begin_) {
      LaneState<kNumbers> left;
      load({at.level, at.index - 1}, left);
      merge(left, state);
      state = left;
      at = at.parent();
    }
    float* const to = place(at);
    to[0] = state.shift;
    to[kLanes] = state.sum;
    TREE_ATTN_UNROLL
    for (int c = 0; c < kNumbers; ++c) to[(2 + c) * kLanes] = state.n[c];
  }
  /// Reads the state of a subtree that is held, also one that another block has written.
  __device__ __forceinline__ void load(Subtree at, LaneState<kNumbers>& state) const {
    const float* const from = place(at);
    state.shift = load_fresh(from);
    state.sum = load_fresh(from + kLanes);
    TREE_ATTN_UNROLL
    for (int c = 0; c < kNumbers; ++c) state.n[c] = load_fresh(from + (2 + c) * kLanes);
  }
  /// Appends all that the counter of the next run on the right holds.
  __device__ __forceinline__ void append(const Counter& right, Run64 run) {
    while (!run.empty()) {
      const Subtree at = first_subtree(run.begin, run.end);
      LaneState<kNumbers> state;
      right.load(at, state);
      push(at, state);
      run.begin = at.end();
    }
  }
  /// Merges what is held of the positions `run` into one state, right to left, as the perfect tree does.
  __device__ __forceinline__ void fold(Run64 run, LaneState<kNumbers>& state) const {
    set_empty(state);
    while (!run.empty()) {
      const Subtree at = last_subtree(run.begin, run.end);
      LaneState<kNumbers> left;
      load(at, left);
      merge(left, state);
      state = left;
      run.end = at.begin();
    }
  }

 private:
  static constexpr int kPlace = (2 + kNumbers) * kLanes;
  __device__ float* place(Subtree at) const { return memory_ + (2 * at.level + (at.index & 1)) * kPlace; }

  float* memory_;
  std::int64_t begin_;
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
