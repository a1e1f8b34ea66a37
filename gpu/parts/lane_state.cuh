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

/// The forest of a range of positions in global memory, one lane's part of it.
///
/// The states of the subtrees that cover the range lie one after the other, left to right. Which subtrees these are follows
/// from the ends of the range, so only states are stored. The lanes of a worker lie side by side and never read each other's
/// elements, so no barrier is needed while a forest is filled.
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

  /// @param memory of the worker @param place of the lane in a state
  __device__ __forceinline__ LaneForest(float* memory, int place) : memory_(memory + place) {}

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
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
