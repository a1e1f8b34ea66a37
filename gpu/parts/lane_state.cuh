// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The part of a state that one lane holds, and the forests that it goes into (section 5).
///
/// A state of 2 + d_v elements is spread over the lanes of a worker: each holds the shift, the sum and some components of n.
/// A merge is the same few operations on every component, so all lanes merge at once and exchange nothing.
#pragma once

#include "gpu/parts/decode_params.hpp"
#include "gpu/platform/device.hpp"
#include "reference/state/state.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Shift, sum and kElements components of n, in registers.
template <int kElements>
struct LaneState {
  float shift, sum, n[kElements];
};

/// The identity, as in reference/state/state.hpp.
template <int kElements>
__device__ __forceinline__ void set_empty(LaneState<kElements>& state) {
  state.shift = -std::numeric_limits<float>::infinity();
  state.sum = 0;
  TREE_ATTN_UNROLL
  for (int c = 0; c < kElements; ++c) state.n[c] = -0.0f;
}

/// left <- merge(left, right): that of reference/state/state.hpp, component by component.
/// @paper{alg_3, Alg. 3}
template <int kElements>
__device__ __forceinline__ void merge(LaneState<kElements>& left, const LaneState<kElements>& right) {
  const Rescale<float> r = rescale(left.shift, right.shift);
  left.shift = r.shift;
  left.sum = merge_element(r, left.sum, right.sum);
  TREE_ATTN_UNROLL
  for (int c = 0; c < kElements; ++c) left.n[c] = merge_element(r, left.n[c], right.n[c]);
}

/// A binary counter in global memory: the forest of a range of positions, one lane's part of it.
///
/// The states of the subtrees that cover the range lie one after the other, left to right. Which subtrees these are follows
/// from the ends of the range, so only states are stored. The lanes of a worker lie side by side and never read each other's
/// elements, so no barrier is needed while a forest is filled.
/// @paper{thm_1, Thm. 1}
template <int kElements, int kLanes>
class LaneForest {
 public:
  static constexpr int kEntry = (2 + kElements) * kLanes;  ///< floats of one subtree, for all lanes

  /// Floats of a forest for all lanes of a worker.
  /// @param longest positions of the longest range it may hold
  __host__ __device__ static std::int64_t n_floats(std::int64_t longest) {
    std::int64_t n = 2;
    while (longest >>= 1) n += 2;
    return n * kEntry;
  }

  /// @param memory of the worker
  /// @param begin first position of the range: a subtree on the left of it is not here
  /// @param depth subtrees that are already there
  __device__ LaneForest(float* memory, int lane, std::int64_t begin, int depth = 0)
      : memory_(memory + lane), begin_(begin), depth_(depth) {}

  /// Subtrees that are held.
  __device__ int depth() const { return depth_; }
  /// Appends a subtree on the right of all that is held, and merges while there is a sibling.
  __device__ __forceinline__ void push(Subtree subtree, LaneState<kElements>& state) {
    for (; (subtree.index & 1) == 1 && subtree.parent().begin() >= begin_; subtree = subtree.parent()) {
      LaneState<kElements> left;
      load(--depth_, left);
      merge(left, state);
      state = left;
    }
    store(depth_++, state);
  }
  /// Reads, or writes, the i-th subtree from the left.
  __device__ __forceinline__ void load(int i, LaneState<kElements>& state) const {
    const float* const from = memory_ + i * kEntry;
    state.shift = load_fresh(from);
    state.sum = load_fresh(from + kLanes);
    TREE_ATTN_UNROLL
    for (int c = 0; c < kElements; ++c) state.n[c] = load_fresh(from + (2 + c) * kLanes);
  }
  __device__ __forceinline__ void store(int i, const LaneState<kElements>& state) const {
    float* const to = memory_ + i * kEntry;
    store_fresh(to, state.shift);
    store_fresh(to + kLanes, state.sum);
    TREE_ATTN_UNROLL
    for (int c = 0; c < kElements; ++c) store_fresh(to + (2 + c) * kLanes, state.n[c]);
  }

 private:
  float* memory_;
  std::int64_t begin_;
  int depth_;
};

/// The forest of a range of leaves. Of two siblings the left one waits in registers, so that half of the leaves never reach
/// memory.
template <int kElements, int kLanes>
class LeafForest {
 public:
  /// @param memory of the forest @param range positions, at multiples of kLeafKeys
  __device__ __forceinline__ LeafForest(float* memory, int lane, KeyRange range)
      : forest_(memory, lane, range.begin), first_(range.begin >> kLeafLevel), last_((range.end >> kLeafLevel) - 1) {}

  /// Appends the state of the next leaf. @param[in,out] state overwritten
  __device__ __forceinline__ void push(std::int64_t leaf, LaneState<kElements>& state) {
    Subtree subtree{kLeafLevel, leaf};
    if ((leaf & 1) == 0 && leaf < last_) {
      left_ = state;
      return;
    }
    if ((leaf & 1) == 1 && leaf > first_) {
      merge(left_, state);
      state = left_;
      subtree = subtree.parent();
    }
    forest_.push(subtree, state);
  }
  /// No leaf follows, and none waits.
  __device__ __forceinline__ void finish() {}

 private:
  LaneForest<kElements, kLanes> forest_;
  std::int64_t first_, last_;
  LaneState<kElements> left_;
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
