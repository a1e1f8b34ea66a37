// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The tree above the leaves of four warpgroups: a binary counter whose shifts and sums one warp merges (section 5,
/// Thm. 1).
#pragma once

#include "gpu/engine/latent_tile.cuh"
#include "gpu/engine/unit_forest.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// The tree above the leaves of a run of units. Components wait in registers, at the lowest levels, and in memory of the
/// block; shifts and sums in shared memory, where one warp merges them first: of a merge the others need a factor for each
/// query, negative if it is the left side that is scaled. It has the bits of UnitForest.
/// @paper{thm_1, Thm. 1}
template <IsLatentTile Tile, class Leaves>
class LatentForest : UnitsOfRun<Tile, Leaves> {
  using Base = UnitsOfRun<Tile, Leaves>;
  using Base::rows_, Base::n_rows_, Base::lane_, Base::waits_;
  static constexpr int kRows = Tile::kRows, kEights = Tile::kEights;

 public:
  using Sums = typename Tile::Sums;
  static constexpr int kLevels = Tile::kRows > 16 ? 1 : 3;  ///< in registers

  __device__ __forceinline__ LatentForest(const UnitTarget& target, const Leaves& leaves, const LatentMemory<Tile>& shared)
      : Base(target, leaves, static_cast<int>(threadIdx.x)), shared_(shared) {}

  /// The warp that appends shifts and sums: the first of the second warpgroup, which makes no weights.
  __device__ __forceinline__ static bool is_of_rows() { return warp_uniform(static_cast<int>(threadIdx.x / kWarp)) == 4; }
  /// Appends the shifts and sums of leaf i, the next one. That warp; then a barrier of the block, and push().
  __device__ __forceinline__ void push_rows(int i) const {
    const int r = LatentThread().lane;
    const auto parting = this->parting_of(i);
    float state[2] = {kNone, 0};
    if (r < kRows) state[0] = shared_.of_leaf[r], state[1] = shared_.of_leaf[kRows + r];
    const unsigned empty = __ballot_sync(kAllLanes, r < kRows && is_empty(state));
    if (r == 0) *shared_.empty = empty;
    if (r < kRows) {
      TREE_ATTN_LOOP
      for (Count left = waits_ & parting.below; left != 0; left &= left - 1) {
        const int level = lowest_bit(left);
        const Shared<float> other = shared_.rows + level * 2 * kRows;
        const float shift = other[r], sum = other[kRows + r];
        const Rescale<float> to = rescale(shift, state[0]);
        const float of_left = to.right_is_high ? to.factor : 1, of_right = to.right_is_high ? 1 : to.factor;
        state[0] = to.shift, state[1] = of_left * sum + of_right * state[1];
        shared_.factors[level * kRows + r] = to.right_is_high ? -to.factor : to.factor;
      }
      const Shared<float> own = shared_.rows + parting.level * 2 * kRows;
      own[r] = state[0], own[kRows + r] = state[1];
    }
    __syncwarp();
  }

  /// Appends its components. @param[in,out] n overwritten
  __device__ __forceinline__ void push(int i, Sums& n) {
    const auto parting = this->parting_of(i);
    const int lane = opaque(lane_);
    if (const unsigned empty = *shared_.empty; empty != 0) {
      TREE_ATTN_UNROLL
      for (int j = 0; j < 8 * kEights; ++j)
        if ((empty >> Tile::row(lane, j / 4 % kEights * 2 + j % 2) & 1) != 0)
          n[j / 4 / kEights][j / 4 % kEights][j % 4] = -0.0f;
    }
    const Count left = waits_ & parting.below;
    TREE_ATTN_UNROLL
    for (int level = 0; level < kLevels; ++level)
      if ((left >> level & 1) != 0) {
        TREE_ATTN_UNROLL
        for (int box = 0; box < 2; ++box) merge_into(n[box], waiting_[level][box], level, lane);
      }
    if (Count rest = left >> kLevels << kLevels; rest != 0) {
      TREE_ATTN_LOOP
      for (; rest != 0; rest &= rest - 1) merge_from_stack(n, lowest_bit(rest), lane);
      // Clear the levels below, which have been merged: zeros take no registers in the loop.
      TREE_ATTN_UNROLL
      for (int j = 0; j < kLevels * 8 * kEights; ++j)
        waiting_[j / 8 / kEights][j / 4 / kEights % 2][j / 4 % kEights][j % 4] = 0;
    }
    if (parting.ends_unit) {
      store(n, lane);
    } else if (parting.level < kLevels) {
      TREE_ATTN_UNROLL
      for (int level = 0; level < kLevels; ++level)
        if (parting.level == level) std::memcpy(waiting_[level], n, sizeof n);
    } else {
      TREE_ATTN_UNROLL
      for (int j = 0; j < 2 * kEights; ++j)
        store_fresh16(stack(parting.level, lane) + j * kStackEntry<Tile>, bytes16_of(n[j / kEights][j % kEights]));
    }
    this->pass(parting);
  }

 private:
  __device__ __forceinline__ float* stack(int level, int lane) const {
    return rows_.template stack<Tile>(0) + (level - kLevels) * (Tile::kLaneQueries * kStackEntry<Tile>)+4 * lane;
  }
  /// n <- merge(left, n), for the components of a box.
  __device__ __forceinline__ void merge_into(float (&n)[kEights][4], const float (&left)[kEights][4], int level,
                                             int lane) const {
    const Shared<float> factors = shared_.factors + level * kRows;
    TREE_ATTN_UNROLL
    for (int query = 0; query < Tile::kLaneQueries; ++query) {
      const float factor = factors[Tile::row(lane, query)];
      const bool right_is_high = (bits_of(factor) >> 31) != 0;
      const float of_left = right_is_high ? -factor : 1, of_right = right_is_high ? 1 : factor;
      TREE_ATTN_UNROLL
      for (int i = query % 2; i < 4; i += 2) {
        float& x = n[query / 2][i];
        x = of_left * left[query / 2][i] + of_right * x;
      }
    }
  }
  /// Likewise for all components, with a state in memory: box by box, for there are no registers for both.
  __device__ __forceinline__ void merge_from_stack(Sums& n, int level, int lane) const {
    TREE_ATTN_UNROLL
    for (int box = 0; box < 2; ++box) {
      float other[kEights][4];
      TREE_ATTN_UNROLL
      for (int j = 0; j < kEights; ++j)
        widen<float>(load_fresh16(stack(level, lane) + (box * kEights + j) * kStackEntry<Tile>), other[j]);
      merge_into(n[box], other, level, lane);
    }
  }
  /// Stores the state of the unit that ends.
  __device__ __forceinline__ void store(const Sums& n, int lane) const {
    const Shared<float> of_unit = shared_.rows + (LatentMemory<Tile>::kLevels - 1) * 2 * kRows;
    TREE_ATTN_UNROLL
    for (int query = 0; query < Tile::kLaneQueries; ++query) {
      const int r = Tile::row(lane, query);
      if (r >= n_rows_) continue;
      float* const to = this->row(query);
      this->store_head(to, lane, of_unit[r], of_unit[kRows + r]);
      TREE_ATTN_UNROLL
      for (int c = 0; c < 4; ++c) this->store_component(to, lane, c, n[c / 2][query / 2][c % 2 * 2 + query % 2]);
    }
  }

  const LatentMemory<Tile>& shared_;
  /// Zero at first: registers that some rounds of a loop leave alone are kept from walk to walk.
  Sums waiting_[kLevels] = {};
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
