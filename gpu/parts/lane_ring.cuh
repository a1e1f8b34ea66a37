// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A ring of copies in flight that needs no barrier: every lane copies what it will read itself (cp.async).
///
/// Shared memory serves as registers that arrive late. No other lane reads a lane's vector of a row, so waiting for its own
/// copies is all the order there is to keep. Rows may have any stride, length and alignment: this is the general source.
#pragma once

#include "gpu/parts/key_accumulator.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// kStages stages of eight keys and eight values, of which all but one are in flight.
template <IsSubWarp SubWarp, int kStages_ = 3, class Leaves = ContiguousLeaves>
class LaneRing {
 public:
  using T = typename SubWarp::T;
  static constexpr int kStages = kStages_;
  /// 16-byte vectors of one stage, for one lane: keys, then values.
  static constexpr int kVectors = 2 * kKeysPerStep * SubWarp::kVectorsPerLane;
  static constexpr std::size_t n_bytes(int n_threads) {
    return static_cast<std::size_t>(kStages * kVectors) * static_cast<std::size_t>(n_threads) * sizeof(Bytes16);
  }

  /// Starts to copy the first steps.
  /// @param memory [warps][kStages][kVectors][kWarp]: neighbouring lanes write and read neighbouring 16 bytes
  /// @param aligned whether rows start at multiples of 16 bytes; else they are copied element by element, at once
  __device__ __forceinline__ LaneRing(Shared<Bytes16> memory, const DecodeParams& params, std::int64_t kv_head,
                                      const KeySteps<Leaves>& steps, bool aligned)
      : memory_(memory + (threadIdx.x / kWarp * (kStages * kVectors * kWarp) + threadIdx.x % kWarp)),
        keys_{params.key<T>(kv_head, steps.leaves().origin()), params.k.stride[2], params.d_h},
        values_{params.value<T>(kv_head, steps.leaves().origin()), params.v.stride[2], params.d_v},
        steps_(steps),
        aligned_(aligned) {
    for (int step = 0; step < kStages - 1; ++step) start(step, step);
  }

  /// Starts the step that is kStages - 1 ahead, then waits for this one.
  __device__ __forceinline__ void wait(int step, unsigned) {
    start(step + kStages - 1, stage_ == 0 ? kStages - 1 : stage_ - 1);
    copy_async_wait<kStages - 1>();
  }
  __device__ __forceinline__ auto keys(int, unsigned) const { return reader(0); }
  __device__ __forceinline__ auto values(int, unsigned) const { return reader(1); }
  __device__ __forceinline__ void next(int) { stage_ = stage_ + 1 == kStages ? 0 : stage_ + 1; }

 private:
  struct Rows {
    const T* first;  ///< the row that rows are counted from
    std::int64_t stride;
    int d;
  };

  __device__ __forceinline__ auto reader(int which) const {
    return [stage = address(stage_, which)](int i, int vector) {
      return load16(stage + (i * SubWarp::kVectorsPerLane + vector) * kWarp);
    };
  }
  __device__ __forceinline__ Shared<Bytes16> address(int stage, int which) const {
    return memory_ + (stage * 2 + which) * kKeysPerStep * SubWarp::kVectorsPerLane * kWarp;
  }
  /// Starts to copy a step. One without keys copies nothing and still counts.
  __device__ __forceinline__ void start(int step, int stage) {
    const unsigned valid = steps_.valid(step);
    start_rows(keys_, step, valid, address(stage, 0));
    start_rows(values_, step, valid, address(stage, 1));
    copy_async_commit();
  }
  /// Eight rows of full length are copied without byte counts, which take more instructions than the copies.
  __device__ __forceinline__ void start_rows(const Rows& rows, int step, unsigned valid, Shared<Bytes16> to) {
    const int lane = lane_of<SubWarp>(threadIdx.x);
    const T* row = rows.first + steps_.leaves().row(step * kKeysPerStep) * rows.stride + SubWarp::component(lane, 0);
    const auto each = [&](const auto& copy) {
      TREE_ATTN_UNROLL
      for (int i = 0; i < kKeysPerStep; ++i, row += rows.stride) {
        TREE_ATTN_UNROLL
        for (int vector = 0; vector < SubWarp::kVectorsPerLane; ++vector)
          copy(to + (i * SubWarp::kVectorsPerLane + vector) * kWarp, row + vector * SubWarp::kLanes * kPer16<T>, i, vector);
      }
    };
    if (aligned_ && valid == kAllEight && rows.d == SubWarp::kLanes * SubWarp::kElements)
      return each([](Shared<Bytes16> target, const T* from, int, int) { copy_async16(target, from, 16); });
    each([&](Shared<Bytes16> target, const T* from, int i, int vector) {
      const int n_bytes = (valid >> i & 1) != 0 ? bytes_of_vector<SubWarp>(rows.d, lane, vector) : 0;
      if (aligned_)
        copy_async16(target, from, n_bytes);
      else
        store16(target, load_unaligned16(from, n_bytes / static_cast<int>(sizeof(T))));
    });
  }

  Shared<Bytes16> memory_;
  Rows keys_, values_;
  KeySteps<Leaves> steps_;
  bool aligned_;
  int stage_ = 0;  ///< of the step that is being read
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
