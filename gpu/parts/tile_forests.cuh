// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The canonical tree above the leaves of a warp on tensor cores (section 5, Alg. 3).
#pragma once

#include "gpu/parts/lane_state.cuh"
#include "gpu/parts/sub_warp.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// The forests of a warp, one a slot, and one level in shared memory below them: half of the leaves never see L2.
template <IsMmaTile Tile>
class TileForests {
 public:
  using State = LaneState<Tile::kElements>;
  static constexpr int kOfState = (2 + Tile::kElements + 3) / 4;    ///< 16-byte vectors of a lane's part of a state
  static constexpr int kVectors = Tile::kSlots * kOfState * kWarp;  ///< of shared memory, for one warp

  __device__ __forceinline__ TileForests(float* memory, std::int64_t n_forest, KeyRange range, Shared<Bytes16> parked,
                                         int lane)
      : memory_(memory), n_forest_(n_forest), range_(range), parked_(parked), lane_(lane) {}

  /// Appends the state of a subtree in one slot. A leaf whose sibling is still to come in this range waits for it; no lane
  /// looks at another's numbers.
  __device__ __forceinline__ void push(Subtree subtree, int slot, State& state) {
    const int lane = opaque(lane_);
    const Shared<Bytes16> parked = parked_ + (slot * kOfState * kWarp + lane);
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
    LaneForest<Tile::kElements, kWarp> forest(memory_ + slot * n_forest_, lane, range_.begin, depth_);
    forest.push(subtree, state);
    if (slot == Tile::kSlots - 1) depth_ = forest.depth();
  }

 private:
  float* memory_;
  std::int64_t n_forest_;
  KeyRange range_;
  int depth_ = 0;
  Shared<Bytes16> parked_;
  int lane_;
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
