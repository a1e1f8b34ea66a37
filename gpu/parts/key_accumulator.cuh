// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A sub-warp's pass over a range of leaves: scores, weights, values, and the canonical tree above (eq. (7), section
/// 5).
///
/// The arithmetic is written once; where rows come from is a parameter (IsRowSource). A source changes no bit.
#pragma once

#include "gpu/parts/leaf_forest.cuh"
#include "gpu/parts/sub_warp.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// The lowest n bits of eight, and all of them.
inline constexpr unsigned kAllEight = 0xFF;
__device__ __forceinline__ unsigned lowest_of_eight(int n) {
  return n <= 0 ? 0u : n >= kKeysPerStep ? kAllEight : (1u << n) - 1;
}

/// The most of the numbers that the workers of this warp have. All its lanes take that many steps, because they shuffle
/// together.
template <IsSubWarp SubWarp>
__device__ __forceinline__ int most_of_warp(int most) {
  TREE_ATTN_UNROLL
  for (int distance = SubWarp::kLanes; distance < kWarp; distance *= 2) {
    const int other = __shfl_xor_sync(kAllLanes, most, distance);
    most = other > most ? other : most;
  }
  return most;
}

/// The leaves of a worker in steps of eight positions.
template <class Leaves = ContiguousLeaves>
class KeySteps {
 public:
  KeySteps() = default;
  /// See the constructor of the leaves.
  template <class Used>
  __device__ __forceinline__ KeySteps(KeyRange range, const Used& used)
      : leaves_(range, used), size_((leaves_.n_positions() + kKeysPerStep - 1) / kKeysPerStep) {}

  __device__ __forceinline__ const Leaves& leaves() const { return leaves_; }
  /// Steps up to the last key.
  __device__ __forceinline__ int size() const { return size_; }
  /// Which of the eight positions of a step have a key, bit by bit. Other rows are never read.
  __device__ __forceinline__ unsigned valid(int step) const {
    const int at = step * kKeysPerStep;
    return lowest_of_eight(leaves_.end_key(at)) & ~lowest_of_eight(leaves_.first_key(at));
  }
  /// Whether a step holds the last keys of its leaf.
  __device__ __forceinline__ bool ends_leaf(int step) const {
    return step + 1 == size_ || (step < size_ && step % kStepsPerLeaf == kStepsPerLeaf - 1);
  }

 private:
  Leaves leaves_;
  int size_ = 0;
};

/// Where a sub-warp finds its rows, step after step. wait() makes the rows of a step readable, keys() and values() return
/// readers of them, next() says that they have been read. Rows that are not valid may hold anything.
template <class Source>
concept IsRowSource = requires(Source& source, int step, unsigned valid) {
  source.wait(step, valid);
  { source.keys(step, valid) } -> IsRows;
  { source.values(step, valid) } -> IsRows;
  source.next(step);
};

/// The pass of a sub-warp over a range of leaves, for one query. All lanes of the warp call it.
/// @param memory of the sub-warp's forest
template <IsSubWarp SubWarp, class Leaves, IsRowSource Source>
__device__ __forceinline__ void accumulate_keys(const DecodeParams& params, std::int64_t kv_head, std::int64_t r,
                                                const KeySteps<Leaves>& steps, float* memory, Source& source) {
  using T = typename SubWarp::T;
  const int lane = lane_of<SubWarp>(threadIdx.x);
  float q[SubWarp::kElements];
  const T* const query = params.query<T>(kv_head, r);
  TREE_ATTN_UNROLL
  for (int c = 0; c < SubWarp::kElements; ++c) {
    const int component = SubWarp::component(lane, c);
    q[c] = component < params.d_h ? params.query_scale * widen(load_once(query + component)) : 0.0f;
  }

  LeafForest<SubWarp::kElements, SubWarp::kLanes, Leaves> forest(memory, 0, steps.leaves(), lane);
  LaneState<SubWarp::kElements> leaf;
  set_empty(leaf);
  const int n_steps = most_of_warp<SubWarp>(steps.size());
  for (int step = 0; step < n_steps; ++step) {
    const unsigned valid = steps.valid(step);
    source.wait(step, valid);
    float s = score_of_eight<SubWarp>(q, source.keys(step, valid), params.score_scale, lane);
    if ((valid >> key_of_lane(lane) & 1) == 0) s = -std::numeric_limits<float>::infinity();
    add_eight_keys<SubWarp>(s, lane, source.values(step, valid), leaf);
    source.next(step);
    if (!steps.ends_leaf(step)) continue;
    forest.push(step / kStepsPerLeaf, leaf);
    set_empty(leaf);
  }
}

/// Bytes of vector `vector` of a row of d elements that are there, 0 to 16.
template <IsSubWarp SubWarp>
__device__ __forceinline__ int bytes_of_vector(int d, int lane, int vector) {
  const int left = d * static_cast<int>(sizeof(typename SubWarp::T)) - 16 * (vector * SubWarp::kLanes + lane);
  return left < 0 ? 0 : left < 16 ? left : 16;
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
