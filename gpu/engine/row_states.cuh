// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A row of a launch that combines states of units: where they lie, a slice of a state in a warp, and the states that
/// wait for what is on their right (section 5, Alg. 3).
#pragma once

#include "gpu/engine/unit_forest.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Components of a slice of a row, four a lane; and states that a warp loads at once.
inline constexpr int kSlice = 4 * kWarp, kAtOnce = 8, kLogAtOnce = 3;
/// Slices of a row; one where values have no components, for shift and sum.
TREE_ATTN_HOST_DEVICE constexpr int slices_of(int d_v) { return d_v > kSlice ? (d_v + kSlice - 1) / kSlice : 1; }
/// Warps of a block at most, a power of two; and 16-byte vectors of shared memory of a parked state: one a lane, and one of
/// shift and sum.
inline constexpr int kMostCombining = 8, kParkedState = kWarp + 1;
constexpr std::size_t combining_bytes(int n_warps, int n_parked) {
  return static_cast<std::size_t>(n_warps * n_parked * kParkedState) * sizeof(Bytes16);
}

/// A slice of a state, four components a lane.
using SliceState = LaneState<4>;

/// True if a component is not finite, where D is a number: else all components are NaN, whatever the values are. One warp.
__device__ __forceinline__ bool is_broken(const SliceState& state) {
  float zero = 0;  // 0 * x is NaN if x is not finite
  TREE_ATTN_UNROLL
  for (int c = 0; c < 4; ++c) zero = fused_multiply_add(0.0f, state.n[c], zero);
  return __any_sync(kAllLanes, zero != 0) != 0 && state.sum == state.sum;
}

/// States of a row that a warp has combined and that wait in shared memory.
class ParkedStates {
 public:
  __device__ __forceinline__ ParkedStates(Shared<Bytes16> memory, int lane) : memory_(memory), lane_(lane) {}
  __device__ __forceinline__ void load(int i, SliceState& state) const {
    set_state_vector(state, 0, load16(memory_ + (i * kParkedState + kWarp)));
    set_state_vector(state, 1, load16(memory_ + (i * kParkedState + lane_)));
  }
  /// The components of one.
  __device__ __forceinline__ Shared<float> components(int i) const { return shared_as<float>(memory_ + i * kParkedState); }
  /// Then a barrier of those that read.
  __device__ __forceinline__ void store(int i, const SliceState& state) const {
    if (lane_ == 0) store16(memory_ + (i * kParkedState + kWarp), state_vector(state, 0));
    store16(memory_ + (i * kParkedState + lane_), state_vector(state, 1));
  }

 private:
  Shared<Bytes16> memory_;
  int lane_;
};

/// Merges what waits below some levels into the state on its right. @param below bits of those levels
__device__ __forceinline__ void merge_parked(const ParkedStates& parked, Count below, Count waits, int& n_parked,
                                             SliceState& state) {
  TREE_ATTN_LOOP
  for (Count left = waits & below; left != 0; left &= left - 1) {
    SliceState other;
    parked.load(--n_parked, other);
    merge(other, state);
    state = other;
  }
}
/// Parks a state that parts at a level from the next one: a binary counter. One warp.
__device__ __forceinline__ void park(const ParkedStates& parked, int level, Count& waits, int& n_parked, SliceState& state) {
  const Count below = (Count{1} << level) - 1;
  merge_parked(parked, below, waits, n_parked, state);
  waits = (waits & ~below) | Count{1} << level;
  __syncwarp();
  parked.store(n_parked++, state);
  __syncwarp();
}

/// Row of a block, known to all its warps: its units, and where their states lie.
struct RowOfBlock {
  Units units;
  UsedSlots used;
  Count kv_head, in_group, entry;  ///< kv head, the row in its group, and the batch entry
  Count first_item, row;           ///< the work item of unit 0, and the row in its query tile

  template <class Params>
  __device__ __forceinline__ RowOfBlock(const Params& params, const Division& all, Count row_of_all) {
    kv_head = row_of_all / Count(params.group), in_group = row_of_all % Count(params.group);
    const Count tile = in_group >> all.log_rows();
    entry = params.entry_of(kv_head), row = in_group - (tile << all.log_rows());
    units = all.units(params, entry), used = params.used_slots(entry);
    first_item = (entry == 0 ? 0 : all.n_items(params, entry, WarpScan{})) +
                 (params.head_of(kv_head) * all.tiles_per_kv_head() + tile) * units.size();
  }
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
