// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Two rings of copies in flight for a warp on scalar cores: by 16 bytes, or by rows.
///
/// LaneRing (cp.async): each lane copies pieces of 16 bytes. Rows may have any length, and any stride of multiples of 16
/// bytes: this is the general ring.
///
/// BulkRing (cp.async.bulk, compute capability 9): eight lanes copy a row each. Each stage has an mbarrier whose phase ends
/// when its bytes have arrived; round n of a stage waits for phase n, of which only the parity is needed.
#pragma once

#include "gpu/engine/scalar.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// The rows that a warp reads, eight at a time: of each leaf the keys of its steps, and then their values.
template <IsScalarWarp Warp, class Leaves>
class RowSequence {
 public:
  using T = typename Warp::T;
  /// Eight neighbouring rows of keys or values.
  struct Eight {
    const T* first;
    std::int64_t stride;
    int d;
    unsigned valid;  ///< bit i: row i has a key, and is copied
  };

  RowSequence() = default;
  __device__ __forceinline__ RowSequence(const DecodeParams& params, std::int64_t kv_head, const KeySteps<Leaves>& steps)
      : params_(&params),
        keys_(params.key<T>(kv_head, steps.leaves().origin())),
        values_(params.value<T>(kv_head, steps.leaves().origin())),
        steps_(steps) {}

  __device__ __forceinline__ int size() const { return 2 * steps_.size(); }
  /// The i-th eight rows. They are asked for in order. @pre i < size()
  __device__ __forceinline__ Eight at(int i) {
    const int leaf = i / (2 * kStepsPerLeaf), n = steps_.of_leaf(leaf), within = i % (2 * kStepsPerLeaf);
    const bool is_value = within >= n;
    const int step = leaf * kStepsPerLeaf + (is_value ? within - n : within);
    const std::int64_t row = steps_.leaves().next_row(step * kKeysPerStep, first_row_);
    const unsigned valid = steps_.valid(step);
    const std::int64_t stride = is_value ? params_->v.stride[2] : params_->k.stride[2];
    return {(is_value ? values_ : keys_) + row * stride, stride, is_value ? params_->d_v : params_->d_h, valid};
  }

 private:
  const DecodeParams* params_ = nullptr;
  const T *keys_ = nullptr, *values_ = nullptr;  ///< the row that rows are counted from
  KeySteps<Leaves> steps_;
  int first_row_ = 0;  ///< of the leaf that is copied
};

/// Eight rows in shared memory.
template <IsScalarWarp Warp>
struct SharedRows {
  using T = typename Warp::T;
  static constexpr int kVectors = Warp::kRowElements * static_cast<int>(sizeof(T)) / 16;  ///< of a row
  static constexpr int kStage = kKeysPerStep * kVectors;                                  ///< of eight

  Shared<Bytes16> first;

  __device__ __forceinline__ Four<T> operator()(int i, int element) const {
    return shared_as<Four<T>>(first)[(i * Warp::kRowElements + element) / 4];
  }
};

/// kStages stages of eight rows, of which all but one are in flight.
template <IsScalarWarp Warp, int kStages, class Leaves = ContiguousLeaves>
class LaneRing {
 public:
  using T = typename Warp::T;
  using Rows = SharedRows<Warp>;

  /// Starts to copy the first rows.
  /// @param memory [kStages][Rows::kStage] of this warp
  __device__ __forceinline__ LaneRing(Shared<Bytes16> memory, const RowSequence<Warp, Leaves>& rows)
      : memory_(memory), rows_(rows), lane_(static_cast<int>(threadIdx.x % kWarp)) {
    for (int i = 0; i < kStages - 1; ++i) start(i);
  }

  /// Waits for the next rows, and then starts those that are kStages - 1 ahead, in the stage that was read last.
  __device__ __forceinline__ Rows wait() {
    copy_async_wait<kStages - 2>();
    __syncwarp();
    start(stage_ == 0 ? kStages - 1 : stage_ - 1);
    return {memory_ + stage_ * Rows::kStage};
  }
  __device__ __forceinline__ void next() { stage_ = stage_ + 1 == kStages ? 0 : stage_ + 1; }

 private:
  /// Starts to copy the next rows, four lanes each. Where there are none it copies nothing, and still counts.
  __device__ __forceinline__ void start(int stage) {
    if (started_ < rows_.size()) {
      const auto rows = rows_.at(started_);
      const int i = lane_ / 4, n_bytes = rows.d * static_cast<int>(sizeof(T));
      const Shared<Bytes16> to = memory_ + (stage * Rows::kStage + i * Rows::kVectors);
      const auto* const from = reinterpret_cast<const unsigned char*>(rows.first + i * rows.stride);
      const int end = (rows.valid >> i & 1) != 0 ? n_bytes : 0;
      for (int at = lane_ % 4 * 16; at < end; at += 64) copy_async16(to + at / 16, from + at, end - at < 16 ? end - at : 16);
    }
    ++started_;
    copy_async_commit();
  }

  Shared<Bytes16> memory_;
  RowSequence<Warp, Leaves> rows_;
  int lane_, stage_ = 0;  ///< stage that is being read
  int started_ = 0;       ///< of the rows
};

/// kStages stages of eight rows. It lasts as long as the kernel: stages and phases go on from range to range.
/// @pre rows are multiples of 16 bytes, see has_bulk_rows()
template <IsScalarWarp Warp, int kStages, class Leaves = ContiguousLeaves>
class BulkRing {
 public:
  using T = typename Warp::T;
  using Rows = SharedRows<Warp>;
  /// Leaves that begin() reaches.
  static constexpr int kFirstLeaves = (kStages + 2 * kStepsPerLeaf - 1) / (2 * kStepsPerLeaf);

  /// Initialises the barriers. All lanes of the warp call it.
  /// @param memory [kStages][Rows::kStage] of this warp @param barriers [kStages] of this warp
  __device__ __forceinline__ BulkRing(Shared<Bytes16> memory, Shared<Barrier> barriers)
      : memory_(memory), barriers_(barriers), lane_(static_cast<int>(threadIdx.x % kWarp)) {
    if (lane_ == 0) {
      for (int stage = 0; stage < kStages; ++stage) barrier_init(barriers_ + stage, 1);
      barrier_fence_init();
    }
    __syncwarp();
  }

  /// Starts to copy the first rows of a range. What this warp has written to the ring's memory since the last range must be
  /// ordered before copies, see async_proxy_fence().
  __device__ __forceinline__ void begin(const RowSequence<Warp, Leaves>& rows) {
    rows_ = rows, started_ = 0;
    for (int i = 0; i < kStages; ++i) start(stage_ + i < kStages ? stage_ + i : stage_ + i - kStages);
  }
  __device__ __forceinline__ Rows wait() {
    barrier_wait(barriers_ + stage_, parity_);
    return {memory_ + stage_ * Rows::kStage};
  }
  /// Fills the stage again once all lanes have read it.
  __device__ __forceinline__ void next() {
    __syncwarp();
    start(stage_);
    if (++stage_ == kStages) stage_ = 0, parity_ ^= 1;
  }

 private:
  /// Starts to copy the next rows, one lane each, if there are any.
  __device__ __forceinline__ void start(int stage) {
    if (started_ >= rows_.size()) return;
    const auto rows = rows_.at(started_++);
    const int n_bytes = rows.d * static_cast<int>(sizeof(T));
    if (lane_ == 0) barrier_arrive_expect(barriers_ + stage, __popc(rows.valid) * n_bytes);
    __syncwarp();
    if (lane_ < kKeysPerStep && (rows.valid >> lane_ & 1) != 0 && n_bytes > 0)
      bulk_copy(memory_ + (stage * Rows::kStage + lane_ * Rows::kVectors), rows.first + lane_ * rows.stride, n_bytes,
                barriers_ + stage, CacheHint::EvictFirst);
  }

  Shared<Bytes16> memory_;
  Shared<Barrier> barriers_;
  int lane_, stage_ = 0, parity_ = 0;
  RowSequence<Warp, Leaves> rows_;
  int started_ = 0;
};

/// In place of a BulkRing, where there are no bulk copies.
struct NoRing {};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
