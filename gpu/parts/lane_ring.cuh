// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A ring of copies in flight that needs no barrier: every lane copies what it will read itself (cp.async).
///
/// Shared memory stands in for registers that arrive late. A lane's vector of a row is of interest to no other lane, so a
/// wait for the lane's own copies is all the order there is to keep.
#pragma once

#include "gpu/parts/key_accumulator.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Stages of eight keys and eight values.
template <IsSubWarp SubWarp>
class LaneRing {
 public:
  /// 16-byte vectors of one stage, for one lane: keys, then values.
  static constexpr int kVectors = 2 * kKeysPerStep * SubWarp::kVectorsPerLane;
  static constexpr std::size_t n_bytes(int n_stages, int n_threads) {
    return static_cast<std::size_t>(n_stages) * kVectors * static_cast<std::size_t>(n_threads) * sizeof(Bytes16);
  }

  /// @param memory [n_stages][kVectors][threads]: neighbouring lanes write and read neighbouring 16 bytes
  __device__ __forceinline__ explicit LaneRing(Shared<Bytes16> memory) : memory_(memory + threadIdx.x) {}

  /// Starts to copy eight keys and eight values into a stage.
  /// @param keys, values row 0 of the step in either array
  /// @param valid bit i: row i may be read; the others become zero
  /// @param aligned whether rows start at multiples of 16 bytes; else they are copied number by number, at once
  __device__ __forceinline__ void start(const DecodeParams& params, const typename SubWarp::T* keys,
                                        const typename SubWarp::T* values, unsigned valid, int lane, bool aligned,
                                        int stage) {
    start_rows(keys, params.k.stride[2], params.d_h, valid, lane, aligned, address(stage, 0, 0, 0));
    start_rows(values, params.v.stride[2], params.d_v, valid, lane, aligned, address(stage, 1, 0, 0));
  }
  /// What a stage holds: key, or value, i of the step, and its vector.
  __device__ __forceinline__ Bytes16 key(int stage, int i, int vector) const { return load16(address(stage, 0, i, vector)); }
  __device__ __forceinline__ Bytes16 value(int stage, int i, int vector) const {
    return load16(address(stage, 1, i, vector));
  }

 private:
  __device__ __forceinline__ Shared<Bytes16> address(int stage, int which, int i, int vector) const {
    return memory_ +
           (((stage * 2 + which) * kKeysPerStep + i) * SubWarp::kVectorsPerLane + vector) * static_cast<int>(blockDim.x);
  }
  __device__ __forceinline__ void start_rows(const typename SubWarp::T* row, std::int64_t stride, int d, unsigned valid,
                                             int lane, bool aligned, Shared<Bytes16> to) {
    using T = typename SubWarp::T;
    row += SubWarp::component(lane, 0);
    TREE_ATTN_UNROLL
    for (int i = 0; i < kKeysPerStep; ++i, row += stride) {
      TREE_ATTN_UNROLL
      for (int vector = 0; vector < SubWarp::kVectorsPerLane; ++vector) {
        const T* const from = row + vector * SubWarp::kLanes * kPer16<T>;
        const int n_bytes = (valid >> i & 1) != 0 ? bytes_of_vector<SubWarp>(d, lane, vector) : 0;
        const auto target = to + (i * SubWarp::kVectorsPerLane + vector) * static_cast<int>(blockDim.x);
        if (aligned)
          copy_async16(target, from, n_bytes);
        else
          store16(target, load_unaligned16(from, n_bytes / static_cast<int>(sizeof(T))));
      }
    }
  }

  Shared<Bytes16> memory_;
};

/// A sub-warp's pass with kStages - 1 steps in flight while one is at work.
template <IsSubWarp SubWarp, int kStages>
__device__ __forceinline__ void accumulate_keys_async(const DecodeParams& params, std::int64_t kv_head, std::int64_t r,
                                                      KeyRange range, float* memory, bool aligned, LaneRing<SubWarp> ring) {
  using T = typename SubWarp::T;
  KeyAccumulator<SubWarp> accumulator(params, kv_head, r, range, memory);
  const int lane = accumulator.lane(), n_steps = accumulator.n_steps();
  const T* keys = params.key<T>(kv_head, accumulator.key_steps().origin());
  const T* values = params.value<T>(kv_head, accumulator.key_steps().origin());
  int ahead = 0;
  const auto start_next = [&](int stage) {
    ring.start(params, keys, values, accumulator.key_steps().valid(ahead), lane, aligned, stage);
    copy_async_commit();
    ++ahead;
    keys += kKeysPerStep * params.k.stride[2];
    values += kKeysPerStep * params.v.stride[2];
  };

  // Fill all stages but one. A step without keys copies nothing and still counts.
  for (int stage = 0; stage < kStages - 1; ++stage) start_next(stage);

  // Start the step that is kStages - 1 ahead, wait for this one, take it.
  int stage = 0;
  for (int step = 0; step < n_steps; ++step) {
    start_next(stage == 0 ? kStages - 1 : stage - 1);
    copy_async_wait<kStages - 1>();
    accumulator.take(
        step, [ring, stage](int i, int vector) { return ring.key(stage, i, vector); },
        [ring, stage](int i, int vector) { return ring.value(stage, i, vector); });
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  copy_async_wait<0>();
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
