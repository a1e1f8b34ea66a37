// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The canonical tree above the leaves of a warp on tensor cores (section 5, Alg. 3).
#pragma once

#include "gpu/parts/lane_state.cuh"
#include "gpu/parts/team.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// The forests of a warp, one a slot, and one level in shared memory below them: half of the leaves never see L2.
template <IsMmaTile Tile>
class TileForests {
 public:
  using State = LaneState<Tile::kNumbers>;
  static constexpr int kOfState = (2 + Tile::kNumbers + 3) / 4;          ///< 16-byte pieces of a lane's part of a state
  static constexpr int kPieces = Tile::kSlots * kOfState * kWarp;  ///< of shared memory, for one warp

  __device__ __forceinline__ TileForests(float* memory, std::int64_t n_forest, Run run, Shared<Bytes16> parked, int lane)
      : memory_(memory), n_forest_(n_forest), run_(run), parked_(parked), lane_(lane) {}

  /// Appends the state of a piece in one slot. A leaf whose sibling is still to come in this run waits for it; no lane looks
  /// at another's numbers.
  __device__ __forceinline__ void push(Subtree piece, int slot, State& state) {
    const int lane = forget(lane_);
    const Shared<Bytes16> place = parked_ + (slot * kOfState * kWarp + lane);
    if (piece.level == kLeafLevel && piece.parent().begin() >= run_.begin && piece.parent().end() <= run_.end) {
      float numbers[4 * kOfState] = {state.shift, state.sum};
      if ((piece.index & 1) == 0) {
        TREE_ATTN_UNROLL
        for (int c = 0; c < Tile::kNumbers; ++c) numbers[2 + c] = state.n[c];
        TREE_ATTN_UNROLL
        for (int i = 0; i < kOfState; ++i) {
          Bytes16 bytes;
          std::memcpy(&bytes, numbers + 4 * i, sizeof bytes);
          store16(place + i * kWarp, bytes);
        }
        return;
      }
      TREE_ATTN_UNROLL
      for (int i = 0; i < kOfState; ++i) {
        const Bytes16 bytes = load16(place + i * kWarp);
        std::memcpy(numbers + 4 * i, &bytes, sizeof bytes);
      }
      State left;
      left.shift = numbers[0], left.sum = numbers[1];
      TREE_ATTN_UNROLL
      for (int c = 0; c < Tile::kNumbers; ++c) left.n[c] = numbers[2 + c];
      merge(left, state);
      state = left;
      piece = piece.parent();
    }
    // All slots have the same subtrees, so the same depth.
    Counter<Tile::kNumbers, kWarp> forest(memory_ + slot * n_forest_, lane, run_.begin, depth_);
    forest.push(piece, state);
    if (slot == Tile::kSlots - 1) depth_ = forest.depth();
  }

 private:
  float* memory_;
  std::int64_t n_forest_;
  Run run_;
  int depth_ = 0;
  Shared<Bytes16> parked_;
  int lane_;
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
