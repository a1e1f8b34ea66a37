// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Memory of the states of units, the tree above the leaves of a unit, which is a binary counter, and sums over a
/// batch by a warp (section 5, Thm. 1).
#pragma once

#include "gpu/engine/forest.cuh"
#include "gpu/engine/units.hpp"

#include <algorithm>
#include <bit>
#include <type_traits>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Sums over a batch by a warp, as SerialScan: all lanes call it with the same arguments and get the same result. One
/// thread that reads the lengths one after the other would wait for memory as often as the batch has entries.
struct WarpScan {
  template <class Of>
  __device__ __forceinline__ static Count sum(Count n, const Of& of) {
    if (n == 1) return of(0);
    Count sum = 0;
    TREE_ATTN_LOOP
    for (Count i = threadIdx.x % kWarp; i < n; i += kWarp) sum += of(i);
    TREE_ATTN_UNROLL
    for (int flip = 1; flip < kWarp; flip *= 2) sum += __shfl_xor_sync(kAllLanes, sum, flip);
    return warp_uniform(sum);
  }
  template <class Of>
  __device__ __forceinline__ static FoundEntry find(Count n, Count work_item, const Of& of, FoundEntry found = {}) {
    if (n == 1) return {};
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    TREE_ATTN_LOOP
    for (;; found.entry += kWarp) {
      const Count i = found.entry + static_cast<Count>(lane), own = i < n ? of(i) : 0;
      // Those of the entries up to this lane's.
      Count through = own;
      TREE_ATTN_UNROLL
      for (int distance = 1; distance < kWarp; distance *= 2) {
        const Count left = __shfl_sync(kAllLanes, through, lane - distance);
        if (lane >= distance) through += left;
      }
      const int n_passed = __popc(__ballot_sync(kAllLanes, work_item >= found.first + through));
      if (n_passed < kWarp)
        return {warp_uniform(found.entry + static_cast<Count>(n_passed)),
                warp_uniform(found.first + __shfl_sync(kAllLanes, through - own, n_passed))};
      found.first += __shfl_sync(kAllLanes, through, kWarp - 1);
    }
  }
};

/// The highest bit of a number that is not 0, and the lowest.
__device__ __forceinline__ int highest_bit(Count n) {
#if defined(__CUDA_ARCH__)
  return 31 - __clz(static_cast<int>(n));
#else
  return std::bit_width(n) - 1;
#endif
}
__device__ __forceinline__ int lowest_bit(Count n) {
#if defined(__CUDA_ARCH__)
  return __ffs(static_cast<int>(n)) - 1;
#else
  return std::countr_zero(n);
#endif
}

/// States of a row that wait for what is on their right, at least, while a warp combines eight units at a time: one a level.
inline constexpr int kMostParked = 14;

/// Memory of the two launches of a step, and what they divide the work by.
///
/// A state of a unit is a row: shift, sum, two floats of padding, d_v components and padding. A unit has as many rows as its
/// query tile may, one after the other, and units lie in the order of their work items. Before them lie the states that wait
/// in the tree of a unit, by thread group.
struct UnitMemory {
  UnitRule rule{};
  int log_rows = 0;     ///< rows of a query tile, as a power of two
  int n_row_tiles = 1;  ///< of a query tile
  float* floats = nullptr;
  std::int64_t first_unit = 0;    ///< floats before the units
  Count n_stack = 0;              ///< floats of a thread group's stack for one query of each lane
  Count n_rows = 1, n_state = 0;  ///< rows of a unit; floats of a state
  int n_parked = kMostParked;     ///< states that wait of a warp that combines, or of one that replaces sums of a unit

  static constexpr int kFirstComponent = 4;
  /// Memory by offset: so many times 16 bytes from the start. It has at most 64 GiB.
  TREE_ATTN_HOST_DEVICE float* at(Count offset) const { return floats + 4 * std::int64_t{offset}; }
  TREE_ATTN_HOST_DEVICE Count offset_of_row(Count item, Count r) const {
    return Count(first_unit / 4) + (item * n_rows + r) * (n_state / 4);
  }
  /// The memory in which the states of one query of each lane wait, of the thread group of this thread.
  template <IsThreadGroup ThreadGroup>
  __device__ __forceinline__ float* stack_of(int query) const {
    const Count group = blockIdx.x * (blockDim.x / ThreadGroup::kLanes) + threadIdx.x / ThreadGroup::kLanes;
    return floats + (std::int64_t{group} * ThreadGroup::kLaneQueries + query) * n_stack;
  }
  /// Row r of the unit of a work item.
  TREE_ATTN_HOST_DEVICE float* row(Count item, Count r) const { return at(offset_of_row(item, r)); }
};

/// The leaves of a run of units.
template <class Leaves, class Params>
__device__ __forceinline__ Leaves leaves_of_run(const Params& params, const UnitRun& run, Count kv_head) {
  const KeyRange range = params.leaves_of_slots(run.found.entry, run.begin, run.end);
  return Leaves({warp_uniform(range.begin), warp_uniform(range.end)}, params.in_use(kv_head));
}

/// The result of a walk: a state for each unit of a run of a thread group.
struct UnitTarget {
  const UnitRun& run;
  Count rows;  ///< offset of the first unit, from the thread group's first row on
  const UnitMemory& memory;
  int n_rows;  ///< in use; 0 or less: none
};

/// Rows of the units of a run. Leaves one after the other leave registers for an address; over a list there are none, so
/// each store works it out.
template <bool kIsListed>
class UnitRows {
 public:
  /// @param offset of the first row of this lane in the first unit
  __device__ __forceinline__ UnitRows(const UnitMemory& memory, Count offset) : memory_(memory) {
    if constexpr (kIsListed)
      at_ = offset;
    else
      at_ = memory.at(offset);
  }
  __device__ __forceinline__ float* row(int query) const {
    if constexpr (kIsListed)
      return memory_.at(at_) + query * memory_.n_state;
    else
      return at_ + query * memory_.n_state;
  }
  template <IsThreadGroup ThreadGroup>
  __device__ __forceinline__ float* stack(int query) const {
    return memory_.stack_of<ThreadGroup>(query);
  }
  /// Goes to the next unit.
  __device__ __forceinline__ void advance() { at_ += memory_.n_rows * (memory_.n_state / (kIsListed ? 4 : 1)); }
  __device__ __forceinline__ Count n_state() const { return memory_.n_state; }

 private:
  const UnitMemory& memory_;
  std::conditional_t<kIsListed, Count, float*> at_;  ///< an offset in memory_, or an address
};

/// The units of a run of a thread group, and the binary counter over their leaves. It holds the states of subtrees that wait
/// for what is on their right, one a level; a leaf merges with those of the levels below the one at which it parts from the
/// next leaf. When a unit ends, all that wait are merged, from right to left, and its state is stored.
/// @paper{thm_1, Thm. 1}
template <IsThreadGroup ThreadGroup, class Leaves>
class UnitsOfRun {
 protected:
  static constexpr int kElements = ThreadGroup::kElements;

  __device__ __forceinline__ UnitsOfRun(const UnitTarget& target, const Leaves& leaves, int lane)
      : rows_(target.memory, target.rows + Count(ThreadGroup::row(lane, 0)) * (target.memory.n_state / 4)),
        n_rows_(target.n_rows),
        lane_(lane),
        ends_(target.run.units.ends()),
        leaves_(leaves),
        end_(Count(target.run.end)),
        unit_end_(target.run.begin < target.run.end ? ends_.of(Count(target.run.begin)) : end_) {
    if constexpr (Leaves::kHasEmptySlots) {
      if (target.run.begin < target.run.end) store_empty_until(leaves.n_leaves() > 0 ? Count(leaves.slot(0)) : end_);
    }
  }

  /// The parting of leaf i, the next one, from the leaf after it.
  struct Parting {
    bool ends_unit;
    int level;          ///< at which it parts from the next leaf; 31 at the end of a unit
    Count below, next;  ///< bits of the levels below; the next slot
  };
  __device__ __forceinline__ Parting parting_of(int i) const {
    const bool is_last = i + 1 == leaves_.n_leaves();
    const Count at = Count(leaves_.slot(i)), next = is_last ? end_ : Count(leaves_.slot(i + 1));
    const bool ends_unit = is_last || next >= unit_end_;
    const int level = ends_unit ? 31 : highest_bit(at ^ next);
    return {ends_unit, level, (Count{1} << level) - 1, next};
  }
  /// Goes on to the next leaf.
  __device__ __forceinline__ void pass(const Parting& parting) {
    waits_ = parting.ends_unit ? 0 : (waits_ & ~parting.below) | Count{1} << parting.level;
    if (!parting.ends_unit) return;
    advance();
    if constexpr (Leaves::kHasEmptySlots) store_empty_until(parting.next);
  }
  /// The row of a query of a lane in the unit at hand.
  __device__ __forceinline__ float* row(int query) const { return rows_.row(ThreadGroup::row(0, query)); }
  /// Stores shift and sum of a row, by the lane with its first component; and component c of a lane.
  __device__ __forceinline__ static void store_head(float* to, int lane, float shift, float sum) {
    if (ThreadGroup::component(lane, 0) == 0) store_fresh16(to, bytes16_of({shift, sum, 0, 0}));
  }
  __device__ __forceinline__ void store_component(float* to, int lane, int c, float x) const {
    const int j = UnitMemory::kFirstComponent + ThreadGroup::component(lane, c);
    if (j < static_cast<int>(rows_.n_state())) store_fresh(to + j, x);
  }

  UnitRows<Leaves::kHasEmptySlots> rows_;
  int n_rows_, lane_;
  Count waits_ = 0;  ///< bit h: a subtree of level h, in leaves, waits for its right sibling

 private:
  /// Writes units without a leaf, as far as they end at a slot: each lane its components, in loops that take few registers.
  __device__ __forceinline__ void store_empty_until(Count slot) {
    TREE_ATTN_LOOP
    for (; unit_end_ <= slot && unit_end_ <= end_; advance()) {
      const int lane = opaque(lane_);
      TREE_ATTN_LOOP
      for (int i = 0; i < ThreadGroup::kLaneQueries && ThreadGroup::row(lane, i) < n_rows_; ++i) {
        float* const to = row(i);
        store_head(to, lane, -std::numeric_limits<float>::infinity(), 0);
        TREE_ATTN_LOOP
        for (int c = 0; c < kElements; ++c) store_component(to, lane, c, -0.0f);
      }
    }
  }
  __device__ __forceinline__ void advance() { rows_.advance(), unit_end_ = ends_.of(unit_end_); }

  UnitEnds ends_;
  Leaves leaves_;
  Count end_, unit_end_;
};

/// The tree above the leaves of a thread group's run of units, for its queries, one lane's part of it. Slots without leaves
/// are neutral, so they are left out. A leaf that is a left sibling waits on the chip, others in memory of the thread group.
/// @paper{thm_1, Thm. 1}
template <IsThreadGroup ThreadGroup, class Leaves>
class UnitForest : UnitsOfRun<ThreadGroup, Leaves> {
  using Base = UnitsOfRun<ThreadGroup, Leaves>;
  using Base::rows_, Base::n_rows_, Base::lane_, Base::waits_;

 public:
  static constexpr int kElements = ThreadGroup::kElements;
  using State = LaneState<kElements>;

  /// @param waiting [Waiting::kVectors] of this thread group
  __device__ __forceinline__ UnitForest(const UnitTarget& target, const Leaves& leaves, int lane, Shared<Bytes16> waiting)
      : Base(target, leaves, lane), waiting_(waiting, lane) {}

  /// Appends the state of leaf i, the next one, for one query of the lane. Query 0 comes last; a lane may leave the others
  /// out. No lane reads what another has written.
  /// @param[in,out] state overwritten
  __device__ __forceinline__ void push(int i, State& state, int query = 0) {
    const LaneStates<ThreadGroup> stack(rows_.template stack<ThreadGroup>(query), ThreadGroup::part(lane_));
    const auto parting = this->parting_of(i);

    // Merge what waits on its left and has no more to come.
    TREE_ATTN_LOOP
    for (Count left = waits_ & parting.below; left != 0; left &= left - 1) {
      const int other_level = lowest_bit(left);
      State other;
      if (other_level == 0)
        waiting_.load(query, other);
      else
        stack.load(other_level - 1, other);
      merge(other, state);
      state = other;
    }
    if (parting.ends_unit) {
      if (ThreadGroup::row(lane_, query) < n_rows_) store(state, query);
    } else if (parting.level == 0) {
      waiting_.store(query, state);
    } else {
      stack.store(parting.level - 1, state);
    }
    if (query == 0) this->pass(parting);
  }

 private:
  __device__ __forceinline__ void store(const State& state, int query) {
    float* const to = this->row(query);
    this->store_head(to, lane_, state.shift, state.sum);
    TREE_ATTN_UNROLL
    for (int c = 0; c < kElements; ++c) this->store_component(to, lane_, c, state.n[c]);
  }

  Waiting<ThreadGroup> waiting_;
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
