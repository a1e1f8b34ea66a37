// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The canonical tree above the leaves of a warp on tensor cores (section 5, Alg. 3).
#pragma once

#include "gpu/parts/lane_state.cuh"
#include "gpu/parts/worker.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// The forests of a warp, one per slot, and one level in shared memory below them: half of the leaves never leave the chip.
template <IsMmaTile Tile>
class TileForests {
 public:
  using State = LaneState<Tile::kElements>;
  static constexpr int kOfState = (2 + Tile::kElements + 3) / 4;    ///< 16-byte vectors of a lane's part of a state
  static constexpr int kVectors = Tile::kSlots * kOfState * kWarp;  ///< of shared memory, for one warp

  /// @param memory of the forests, n_forest floats each @param parked [kVectors]
  __device__ __forceinline__ TileForests(float* memory, std::int64_t n_forest, KeyRange range, Shared<Bytes16> parked,
                                         int lane)
      : memory_(opaque(memory)), n_forest_(n_forest), range_(range), parked_(parked + lane), lane_(lane) {}

  /// Appends the state of a subtree in one slot, the slots in order. A leaf whose sibling is still to come in this range
  /// waits for it. No lane reads what another has written.
  __device__ __forceinline__ void push(Subtree subtree, int slot, State& state) {
    const Shared<Bytes16> parked = parked_ + slot * kOfState * kWarp;
    if (subtree.level == kLeafLevel && subtree.parent().begin() >= range_.begin && subtree.parent().end() <= range_.end) {
      float elements[4 * kOfState] = {state.shift, state.sum};
      if ((subtree.index & 1) == 0) {
        TREE_ATTN_UNROLL
        for (int c = 0; c < Tile::kElements; ++c) elements[2 + c] = state.n[c];
        TREE_ATTN_UNROLL
        for (int i = 0; i < kOfState; ++i) {
          Bytes16 bytes;
          std::memcpy(&bytes, elements + 4 * i, sizeof bytes);
          store16(parked + i * kWarp, bytes);
        }
        return;
      }
      TREE_ATTN_UNROLL
      for (int i = 0; i < kOfState; ++i) {
        const Bytes16 bytes = load16(parked + i * kWarp);
        std::memcpy(elements + 4 * i, &bytes, sizeof bytes);
      }
      State left;
      left.shift = elements[0], left.sum = elements[1];
      TREE_ATTN_UNROLL
      for (int c = 0; c < Tile::kElements; ++c) left.n[c] = elements[2 + c];
      merge(left, state);
      state = left;
      subtree = subtree.parent();
    }
    // All slots have the same subtrees, so the same depth.
    LaneForest<Tile::kElements, kWarp> forest(memory_ + slot * n_forest_, lane_, range_.begin, depth_);
    forest.push(subtree, state);
    if (slot == Tile::kSlots - 1) depth_ = forest.depth();
    // 0 * x is NaN if x is not finite. Every state of the range passes here, by itself or merged.
    TREE_ATTN_UNROLL
    for (int c = 0; c < Tile::kElements; ++c) zero_ = fused_multiply_add(0.0f, state.n[c], zero_);
  }

  /// No leaf follows, and none waits.
  __device__ __forceinline__ void finish() {}

  /// Whether this lane has seen a component that is not finite. D is not finite only together with all of n.
  __device__ __forceinline__ bool is_broken() const { return zero_ != 0; }

 private:
  float* memory_;
  std::int64_t n_forest_;
  KeyRange range_;
  Shared<Bytes16> parked_;
  int lane_, depth_ = 0;
  float zero_ = 0;
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
