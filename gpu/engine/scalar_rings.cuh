// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Two rings of copies in flight for a sub-warp: by every lane for itself, or eight whole rows at once.
///
/// LaneRing (cp.async) needs no barrier: every lane copies what it will read itself, and shared memory serves as registers
/// that arrive late. No other lane reads a lane's vector of a row, so waiting for its own copies is all the order there is
/// to keep. Rows may have any length, and any stride of multiples of 16 bytes: this is the general source.
///
/// BulkRing (cp.async.bulk, compute capability 9): the rows of a step are neighbours in memory, so they are one copy for the
/// keys and one for the values. The first lane of the sub-warp starts both; no lane computes the address of a row. Each
/// stage has an mbarrier whose phase ends when its bytes have arrived; round n of a stage waits for phase n, of which only
/// the parity is needed.
#pragma once

#include "gpu/engine/scalar.cuh"

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
  __device__ __forceinline__ LaneRing(Shared<Bytes16> memory, const DecodeParams& params, std::int64_t kv_head,
                                      const KeySteps<Leaves>& steps)
      : memory_(memory + (threadIdx.x / kWarp * (kStages * kVectors * kWarp) + threadIdx.x % kWarp)),
        keys_{params.key<T>(kv_head, steps.leaves().origin()), params.k.stride[2], params.d_h},
        values_{params.value<T>(kv_head, steps.leaves().origin()), params.v.stride[2], params.d_v},
        steps_(steps) {
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
    if (valid == kAllEight && rows.d == SubWarp::kLanes * SubWarp::kElements)
      return each([](Shared<Bytes16> target, const T* from, int, int) { copy_async16(target, from, 16); });
    each([&](Shared<Bytes16> target, const T* from, int i, int vector) {
      const int n_bytes = (valid >> i & 1) != 0 ? bytes_of_vector<SubWarp>(rows.d, lane, vector) : 0;
      copy_async16(target, from, n_bytes);
    });
  }

  Shared<Bytes16> memory_;
  Rows keys_, values_;
  KeySteps<Leaves> steps_;
  int stage_ = 0;  ///< of the step that is being read
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/// kStages stages of eight keys and eight values, for one sub-warp. It lasts as long as the kernel: stages and phases go on
/// from range to range.
/// @pre dense rows that fill the lanes, see has_bulk_rows()
template <IsSubWarp SubWarp, int kStages_ = 3, class Leaves = ContiguousLeaves>
class BulkRing {
 public:
  using T = typename SubWarp::T;
  static constexpr int kStages = kStages_;
  static constexpr int kRow = SubWarp::kLanes * SubWarp::kVectorsPerLane;  ///< 16-byte vectors of a row
  static constexpr int kStage = 2 * kKeysPerStep * kRow;                   ///< of a stage: keys, then values
  static constexpr int kVectors = kStages * kStage;                        ///< of the ring
  /// Leaves that begin() reaches.
  static constexpr int kFirstLeaves = (kStages + kStepsPerLeaf - 1) / kStepsPerLeaf;

  /// Initialises the barriers. All lanes of the warp call it.
  /// @param memory [kVectors] of this sub-warp @param barriers [kStages] of this sub-warp
  __device__ __forceinline__ BulkRing(Shared<Bytes16> memory, Shared<Barrier> barriers)
      : memory_(memory), barriers_(barriers), lane_(lane_of<SubWarp>(threadIdx.x)) {
    if (lane_ == 0) {
      for (int stage = 0; stage < kStages; ++stage) barrier_init(barriers_ + stage, 1);
      barrier_fence_init();
    }
    __syncwarp();
  }

  /// Starts to copy the first steps of a range. What this warp has written to the ring's memory since the last range must be
  /// ordered before copies, see async_proxy_fence().
  __device__ __forceinline__ void begin(const DecodeParams& params, std::int64_t kv_head, const KeySteps<Leaves>& steps) {
    keys_ = params.key<T>(kv_head, steps.leaves().origin());
    values_ = params.value<T>(kv_head, steps.leaves().origin());
    steps_ = steps;
    for (int step = 0; step < kStages; ++step)
      start(step, stage_ + step < kStages ? stage_ + step : stage_ + step - kStages);
  }
  __device__ __forceinline__ void wait(int step, unsigned) {
    if (step < steps_.size()) return barrier_wait(barriers_ + stage_, parity_);
    // A sub-warp that has finished still participates in the shuffles of its warp. Nothing may have been copied for it.
    TREE_ATTN_LOOP
    for (int i = 0; i < kKeysPerStep * SubWarp::kVectorsPerLane; ++i)
      store16(memory_ + (stage_ * kStage + i * SubWarp::kLanes + lane_), Bytes16{});
  }
  __device__ __forceinline__ auto keys(int, unsigned) const { return reader(0); }
  __device__ __forceinline__ auto values(int, unsigned) const { return reader(1); }
  /// Fills the stage again once all lanes have read it.
  __device__ __forceinline__ void next(int step) {
    __syncwarp();
    if (step >= steps_.size()) return;
    start(step + kStages, stage_);
    if (++stage_ == kStages) stage_ = 0, parity_ ^= 1;
  }

 private:
  __device__ __forceinline__ auto reader(int which) const {
    return [rows = memory_ + (stage_ * kStage + which * kKeysPerStep * kRow + lane_)](int i, int vector) {
      return load16(rows + (i * kRow + vector * SubWarp::kLanes));
    };
  }
  /// All eight rows are copied, with or without a key, see DecodeParams::readable_end.
  __device__ __forceinline__ void start(int step, int stage) {
    if (lane_ != 0 || step >= steps_.size()) return;
    constexpr int kBytes = kKeysPerStep * kRow * 16;
    const Shared<Bytes16> to = memory_ + stage * kStage;
    const std::int64_t from =
        static_cast<std::int64_t>(steps_.leaves().next_row(step * kKeysPerStep, first_row_)) * kRow * kPer16<T>;
    barrier_arrive_expect(barriers_ + stage, 2 * kBytes);
    bulk_copy(to, keys_ + from, kBytes, barriers_ + stage, CacheHint::EvictFirst);
    bulk_copy(to + kKeysPerStep * kRow, values_ + from, kBytes, barriers_ + stage, CacheHint::EvictFirst);
  }

  Shared<Bytes16> memory_;
  Shared<Barrier> barriers_;
  int lane_, stage_ = 0, parity_ = 0;
  const T *keys_ = nullptr, *values_ = nullptr;  ///< the row that rows are counted from
  KeySteps<Leaves> steps_;                       ///< of the range
  int first_row_ = 0;                            ///< of the leaf that is copied
};

#endif

}  // namespace tree_attn::TREE_ATTN_PLATFORM
