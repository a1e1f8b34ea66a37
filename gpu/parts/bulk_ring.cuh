// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A ring of stages that a warp of its own fills with bulk copies, one lane of it for every sub-warp (cp.async.bulk).
///
/// A sub-warp has stages of eight keys and eight values, and every stage two mbarriers. "Full" ends a phase when all bytes
/// of the stage are there, "empty" when the sub-warp has read them. Round n of a stage waits for the phase n of "full", and
/// its filling for the phase n - 1 of "empty"; the parity of a phase is all that a wait has to know.
#pragma once

#include "gpu/parts/key_accumulator.cuh"
#include "gpu/parts/splits.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// How a block is laid out. Its last warp, the producer, comes on top of the threads of the sub-warps.
template <IsSubWarp SubWarp>
struct BulkShape {
  static constexpr int kStages = 3;
  static constexpr int kSubWarpThreads =
      kSplitThreads / SubWarp::kVectorsPerLane;  ///< wider rows take more of the ring, so fewer threads
  static constexpr int kThreads = kSubWarpThreads + kWarp;
  static constexpr int kSubWarps = kSubWarpThreads / SubWarp::kLanes;
  static_assert(kSubWarps <= kWarp, "a lane of the producer serves one sub-warp");

  /// Floats of a row, of a stage (keys, then values), and of the ring.
  static constexpr int kRow = SubWarp::kLanes * SubWarp::kVectorsPerLane * 4;
  static constexpr int kStage = 2 * kKeysPerStep * kRow;
  static constexpr int kRing = kSubWarps * kStages * kStage;
  /// Barriers: a full and an empty one a stage.
  static constexpr int kBarriers = kSubWarps * kStages * 2;
  static constexpr std::size_t kBytes = kRing * sizeof(float) + (kBarriers * sizeof(Barrier) + 127) / 128 * 128;
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/// Eight rows in shared memory: what a lane reads of them.
template <IsSubWarp SubWarp>
struct SharedRows {
  Shared<float> first;  ///< the lane's first vector of row 0
  int d, lane;
  unsigned valid;  ///< bit i: row i has been copied; what a row that is not there left behind is not looked at

  __device__ __forceinline__ Bytes16 operator()(int i, int vector) const {
    if ((valid >> i & 1) == 0 || bytes_of_vector<SubWarp>(d, lane, vector) == 0) return Bytes16{};
    return load16(first + (i * BulkShape<SubWarp>::kRow + vector * SubWarp::kLanes * 4));
  }
};

/// The ring of one sub-warp, as the lane that fills it and the lanes that read it see it. It lasts as long as the kernel:
/// stages and phases go on from range to range.
template <IsSubWarp SubWarp>
class BulkRing {
 public:
  using Shape = BulkShape<SubWarp>;

  /// Readies the barriers. All threads of the block call it: lane t of the last warp serves sub-warp t.
  /// @param memory [kSubWarps][kStages][2][kKeysPerStep][kRow] @param barriers [kSubWarps][kStages][2]
  __device__ __forceinline__ BulkRing(Shared<float> memory, Shared<Barrier> barriers)
      : fills_(static_cast<int>(threadIdx.x) >= Shape::kSubWarpThreads),
        sub_warp_(fills_ ? static_cast<int>(threadIdx.x) - Shape::kSubWarpThreads
                         : static_cast<int>(threadIdx.x) / SubWarp::kLanes),
        parity_(fills_ ? 1 : 0),  // The phase before the first has ended: nobody waits to fill in the first round.
        memory_(memory + sub_warp_ * Shape::kStages * Shape::kStage),
        barriers_(barriers + sub_warp_ * Shape::kStages * 2) {
    if (fills_ && sub_warp_ < Shape::kSubWarps) {
      for (int i = 0; i < Shape::kStages * 2; ++i) barrier_init(barriers_ + i, 1);
      barrier_fence_init();
    }
    __syncthreads();
  }

  /// The pass of all sub-warps of a block over the positions `range`: the last warp fills, the others accumulate. All
  /// threads call it; behind it and a barrier of the block the forests of the sub-warps are there, and the ring's memory is
  /// free until the next.
  /// @param forests of the sub-warps, n_forest floats each
  __device__ __forceinline__ void accumulate(const DecodeParams& params, std::int64_t kv_head, std::int64_t r,
                                             KeyRange range, float* forests, std::int64_t n_forest) {
    const KeyRange own = split_range(range, sub_warp_, Shape::kSubWarps);
    if (!fills_) return accumulate(params, kv_head, r, own, forests + sub_warp_ * n_forest);
    if (sub_warp_ < Shape::kSubWarps) fill(params, kv_head, own);
  }

 private:
  /// The producer's side, by one lane: copies the rows of a range, step by step, as stages become free. A step without keys
  /// copies nothing and still counts.
  /// @param range positions of the sub-warp
  __device__ __forceinline__ void fill(const DecodeParams& params, std::int64_t kv_head, KeyRange range) {
    using T = typename SubWarp::T;
    const std::int64_t used_end = params.in_use(kv_head).end, end = range.end < used_end ? range.end : used_end;
    // An empty range may start inside a step, which has no stage.
    for (std::int64_t step = range.begin / kKeysPerStep * kKeysPerStep; !range.empty() && step < range.end;
         step += kKeysPerStep) {
      barrier_wait(empty(stage_), parity_);

      // Rows [first, last) of the step are there.
      const int first = step < range.begin ? static_cast<int>(range.begin - step) : 0;
      const int last = step + kKeysPerStep < end ? kKeysPerStep : end > step ? static_cast<int>(end - step) : 0;
      const int n = last > first ? last - first : 0;
      const int key_bytes = params.d_h * static_cast<int>(sizeof(T)), value_bytes = params.d_v * static_cast<int>(sizeof(T));
      barrier_arrive_expect(full(stage_), n * (key_bytes + value_bytes));
      if (n > 0) {
        copy_rows(rows(stage_, 0) + first * Shape::kRow, params.key<T>(kv_head, step + first), params.k.stride[2], key_bytes,
                  n, full(stage_));
        copy_rows(rows(stage_, 1) + first * Shape::kRow, params.value<T>(kv_head, step + first), params.v.stride[2],
                  value_bytes, n, full(stage_));
      }
      next();
    }
  }

  /// The sub-warp's side: waits for a stage, takes it, and one lane says, behind the others, that it has been read.
  __device__ __forceinline__ void accumulate(const DecodeParams& params, std::int64_t kv_head, std::int64_t r,
                                             KeyRange range, float* forest) {
    KeyAccumulator<SubWarp> accumulator(params, kv_head, r, range, forest);
    const int lane = accumulator.lane(), n_key_steps = accumulator.key_steps().size(), n_steps = accumulator.n_steps();
    for (int step = 0; step < n_steps; ++step) {
      const bool has_stage = step < n_key_steps;
      if (has_stage) barrier_wait(full(stage_), parity_);
      const unsigned valid = accumulator.key_steps().valid(step);
      accumulator.take(step, SharedRows<SubWarp>{rows(stage_, 0) + lane * 4, params.d_h, lane, valid},
                       SharedRows<SubWarp>{rows(stage_, 1) + lane * 4, params.d_v, lane, valid});
      __syncwarp();
      if (!has_stage) continue;
      if (lane == 0) barrier_arrive(empty(stage_));
      next();
    }
  }

  /// Keys (0) or values (1) of a stage, and its barriers.
  __device__ __forceinline__ Shared<float> rows(int stage, int which) const {
    return memory_ + (stage * Shape::kStage + which * kKeysPerStep * Shape::kRow);
  }
  __device__ __forceinline__ Shared<Barrier> full(int stage) const { return barriers_ + 2 * stage; }
  __device__ __forceinline__ Shared<Barrier> empty(int stage) const { return barriers_ + (2 * stage + 1); }
  __device__ __forceinline__ void next() {
    if (++stage_ == Shape::kStages) stage_ = 0, parity_ ^= 1;
  }

  /// n rows: in one copy if they are neighbours on both sides, else row by row.
  template <class T>
  __device__ __forceinline__ static void copy_rows(Shared<float> to, const T* from, std::int64_t stride, int row_bytes,
                                                   int n, Shared<Barrier> full) {
    const bool whole = row_bytes == Shape::kRow * 4 && stride * static_cast<int>(sizeof(T)) == row_bytes;
    const int n_copies = whole ? 1 : n, n_bytes = whole ? n * row_bytes : row_bytes;
    for (int i = 0; i < n_copies; ++i) bulk_copy(to + i * Shape::kRow, from + i * stride, n_bytes, full);
  }

  bool fills_;
  int sub_warp_, stage_ = 0, parity_;
  Shared<float> memory_;
  Shared<Barrier> barriers_;
};

#endif

}  // namespace tree_attn::TREE_ATTN_PLATFORM
