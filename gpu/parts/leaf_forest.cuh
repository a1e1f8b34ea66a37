// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The canonical tree above the leaves of a worker: a binary counter (section 5, Thm. 1).
#pragma once

#include "gpu/parts/lane_state.cuh"
#include "gpu/parts/leaves.cuh"
#include "gpu/parts/worker.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Where the last subtree waits for its sibling: in registers.
template <int kElements>
class InRegisters {
 public:
  static constexpr int kSlots = 1;
  __device__ __forceinline__ void load(int, LaneState<kElements>& state) const { state = state_; }
  __device__ __forceinline__ void store(int, const LaneState<kElements>& state) { state_ = state; }

 private:
  LaneState<kElements> state_;
};

/// Or in shared memory, for the widest workers: one state per slot.
template <IsWorker Worker>
class InSharedMemory {
 public:
  using State = LaneState<Worker::kElements>;
  static constexpr int kSlots = Worker::kSlots;
  static constexpr int kOfState = (2 + Worker::kElements + 3) / 4;     ///< 16-byte vectors of a lane's part of a state
  static constexpr int kVectors = kSlots * kOfState * Worker::kLanes;  ///< of shared memory, for one worker

  /// @param memory [kVectors] of this worker
  __device__ __forceinline__ InSharedMemory(Shared<Bytes16> memory, int lane) : memory_(memory + lane) {}
  __device__ __forceinline__ void load(int slot, State& state) const {
    float elements[4 * kOfState];
    TREE_ATTN_UNROLL
    for (int i = 0; i < kOfState; ++i) {
      const Bytes16 bytes = load16(memory_ + (slot * kOfState + i) * Worker::kLanes);
      std::memcpy(elements + 4 * i, &bytes, sizeof bytes);
    }
    state.shift = elements[0], state.sum = elements[1];
    TREE_ATTN_UNROLL
    for (int c = 0; c < Worker::kElements; ++c) state.n[c] = elements[2 + c];
  }
  __device__ __forceinline__ void store(int slot, const State& state) const {
    float elements[4 * kOfState] = {state.shift, state.sum};
    TREE_ATTN_UNROLL
    for (int c = 0; c < Worker::kElements; ++c) elements[2 + c] = state.n[c];
    TREE_ATTN_UNROLL
    for (int i = 0; i < kOfState; ++i) {
      Bytes16 bytes;
      std::memcpy(&bytes, elements + 4 * i, sizeof bytes);
      store16(memory_ + (slot * kOfState + i) * Worker::kLanes, bytes);
    }
  }

 private:
  Shared<Bytes16> memory_;
};

/// The forests of a worker's leaves, one per slot, one lane's part of them. All slots have the same subtrees. A subtree that
/// the next leaf may complete waits on the chip: without empty slots half of the leaves never reach memory.
/// @paper{thm_1, Thm. 1}
template <int kElements, int kLanes, class Leaves = ContiguousLeaves, class Waiting = InRegisters<kElements>>
class LeafForest {
 public:
  using State = LaneState<kElements>;

  /// @param memory of the forests, n_forest floats each @param place of the lane in a state, Worker::place()
  __device__ __forceinline__ LeafForest(float* memory, std::int64_t n_forest, const Leaves& leaves, int place,
                                        const Waiting& waiting = {})
      : memory_(memory), n_forest_(n_forest), leaves_(leaves), place_(place), waiting_(waiting) {}

  /// Appends the state of leaf i, the next one, in one slot. Slot 0 comes last; a lane may leave the others out. No lane
  /// reads what another has written.
  /// @param[in,out] state overwritten
  __device__ __forceinline__ void push(int i, State& state, int slot = 0) {
    const LaneForest<kElements, kLanes> forest(memory_ + slot * n_forest_, place_);
    int depth = depth_;
    bool waits = waits_;

    // Merge the subtrees on its left that it completes, and go up where the right side is empty.
    Subtree subtree{kLeafLevel, leaves_.slot(i)};
    for (;; subtree = subtree.parent()) {
      if ((subtree.index & 1) == 0) {
        if (!Leaves::kHasEmptySlots || subtree.parent().end() > leaves_.next(i)) break;
      } else {
        if (subtree.parent().begin() < leaves_.begin()) break;
        State left;
        if (waits)
          waiting_.load(slot, left);
        else
          forest.load(--depth, left);
        waits = false;
        merge(left, state);
        state = left;
      }
    }

    // Store what waited for another sibling, then the new subtree, or let it wait.
    if (Leaves::kHasEmptySlots && waits) {
      State left;
      waiting_.load(slot, left);
      store(forest, depth++, left);
    }
    waits = leaves_.waits(subtree, i);
    if (waits)
      waiting_.store(slot, state);
    else
      store(forest, depth++, state);

    // Slots that are empty, and right of a subtree whose left sibling is not in this part.
    if constexpr (Leaves::kHasEmptySlots) {
      set_empty(state);
      for (std::int64_t at = subtree.end(), next = leaves_.next(i); at < next; at = first_subtree(at, next).end())
        store(forest, depth++, state);
    }
    if (slot == 0) depth_ = depth, waits_ = waits;
  }

  /// Whether this lane has stored a component that is not finite. D is not finite only together with all of n.
  __device__ __forceinline__ bool is_broken() const { return zero_ != 0; }

 private:
  __device__ __forceinline__ void store(const LaneForest<kElements, kLanes>& forest, int i, const State& state) {
    forest.store(i, state);
    // 0 * x is NaN if x is not finite. Every state of the range passes here, by itself or merged.
    TREE_ATTN_UNROLL
    for (int c = 0; c < kElements; ++c) zero_ = fused_multiply_add(0.0f, state.n[c], zero_);
  }

  float* memory_;
  std::int64_t n_forest_;
  Leaves leaves_;
  int place_, depth_ = 0;  ///< depth: subtrees in memory
  bool waits_ = false;     ///< whether the last subtree is not there yet
  Waiting waiting_;
  float zero_ = 0;
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
