// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The launch that combines the states of units: finished rows, or the states of the shard (section 5, Alg. 3).
#pragma once

#include "gpu/engine/launch.hpp"
#include "gpu/engine/replace.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// The subtree whose states one block combines.
struct CombinedSubtree {
  std::int64_t begin = 0;
  int level = -1;  ///< in leaves; negative: no leaf is below it

  /// The least one with all leaves of a sequence; or subtree i of those that cover the shard.
  __device__ __forceinline__ static CombinedSubtree whole(const UsedSlots& used) {
    if (used.size() == 0) return {};
    const Count last = used.end - 1;
    const int level = used.first == last ? 0 : highest_bit(used.first ^ last) + 1;
    return {std::int64_t{used.first >> level} << level, level};
  }
  __device__ __forceinline__ static CombinedSubtree covering(KeyRange shard, int i) {
    for (; i > 0; --i) shard.begin = first_subtree(shard.begin, shard.end).end();
    const Subtree subtree = first_subtree(shard.begin, shard.end);
    // A leaf in which the shard ends is the first of the subtrees that share it.
    if (subtree.begin() % kLeafKeys != 0) return {};
    return {leaf_at(subtree.begin()), subtree.level > kLeafLevel ? subtree.level - kLeafLevel : 0};
  }
};

/// Merges eight neighbouring subtrees of one level, in pairs.
__device__ __forceinline__ void merge_eight(SliceState (&s)[kAtOnce]) {
  TREE_ATTN_UNROLL
  for (int distance = 1; distance < kAtOnce; distance *= 2) TREE_ATTN_UNROLL
  for (int i = 0; i < kAtOnce; i += 2 * distance) merge(s[i], s[i + distance]);
}

/// The units of one row and slice.
struct RowOfUnits {
  const Units& units;
  const UnitMemory& memory;
  Count first_item, row;
  int component;  ///< first of this lane's
  int d_v;

  /// The state of the unit of a slot, if it has leaves. @param[in,out] state empty
  __device__ __forceinline__ void load(std::int64_t slot, SliceState& state) const {
    const Count unit = units.number_of(slot);
    if (unit >= units.size()) return;
    const float* const from = memory.row(first_item + unit, row);
    set_state_vector(state, 0, load_fresh16(from));
    if (component < d_v) set_state_vector(state, 1, load_fresh16(from + UnitMemory::kFirstComponent + component));
  }

  /// The state of the slots [begin, end) of full units, by one warp: eight units at a time in pairs, then as a binary
  /// counter.
  __device__ __forceinline__ void combine(std::int64_t begin, std::int64_t end, const UsedSlots& used,
                                          const ParkedStates& parked, SliceState& state) const {
    set_empty(state);
    const int log = units.log() + kLogAtOnce;
    const std::int64_t first = begin > used.first ? begin : used.first, last = end < used.end ? end : used.end;
    if (first >= last) return;
    Count waits = 0;
    int n_parked = 0;
    TREE_ATTN_LOOP
    for (std::int64_t group = first >> log, next; group >= 0; group = next) {
      SliceState s[kAtOnce];
      TREE_ATTN_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const std::int64_t slot = (group << log) + (std::int64_t{i} << units.log());
        set_empty(s[i]);
        if (slot >= begin && slot < end) load(slot, s[i]);
      }
      merge_eight(s);
      state = s[0];

      // The next group with a leaf, and what waits for it.
      next = group + 1;
      if (next << log >= used.gap && next < std::int64_t{used.after} >> log) next = used.after >> log;
      if (next << log >= last) next = -1;
      if (next < 0) return merge_parked(parked, ~Count{0}, waits, n_parked, state);
      park(parked, highest_bit(Count(group) ^ Count(next)), waits, n_parked, state);
    }
  }
};

/// Writes one slice of the result: z = n / D and lse, or a state.
struct CombinedOutput {
  const DeviceOutput& output;
  std::int64_t n_rows, row;
  int component, d_v;

  __device__ __forceinline__ void write(int subtree, const SliceState& state) const {
    if (output.out == nullptr) {
      float* const to = output.states + (subtree * n_rows + row) * state_size(d_v);
      if (component == 0) store_fresh(to + kShift, state.shift), store_fresh(to + kSum, state.sum);
      TREE_ATTN_UNROLL
      for (int c = 0; c < 4; ++c)
        if (component + c < d_v) store_fresh(to + kValues + component + c, state.n[c]);
      return;
    }
    const float e_and_sum[] = {state.shift, state.sum};
    if (component == 0) store_fresh(output.lse + row, finish_lse(e_and_sum));
    TREE_ATTN_UNROLL
    for (int c = 0; c < 4; ++c)
      if (component + c < d_v) store_fresh(output.out + row * d_v + component + c, finish_value(e_and_sum, state.n[c]));
  }
};

/// The slots that one warp combines: a unit, or full units.
struct OwnSlots {
  std::int64_t begin, end;
  bool is_unit;

  __device__ __forceinline__ void combine(const RowOfUnits& rows, const UsedSlots& used, const ParkedStates& parked,
                                          SliceState& state) const {
    if (is_unit)
      set_empty(state), rows.load(begin, state);
    else
      rows.combine(begin, end, used, parked, state);
  }
};

/// The GPU in software calls no functions.
#if defined(TREE_ATTN_NO_CALLS)
#define TREE_ATTN_CALLED __forceinline__
#else
#define TREE_ATTN_CALLED __noinline__
#endif

/// Replaces the sums of own slots that are not finite, and combines them again. By one warp; no part of the kernel that
/// calls it, whose registers it would take.
/// @param first component of the slice @param shared [memory.n_parked][kParkedState]; the state is left at its beginning
template <IsMmaTile Tile, class Params>
__device__ TREE_ATTN_CALLED void combine_again(const Params& params, const UnitMemory& memory, Count row, OwnSlots own,
                                               int first, Shared<Bytes16> shared) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const ParkedStates parked(shared, lane);
  const RowOfBlock of(params, Division(params, memory.rule, memory.log_rows, WarpScan{}), row);
  TREE_ATTN_LOOP
  for (Count unit = 0; unit < of.units.size(); ++unit) {
    const std::int64_t slot = of.units.begin_of(unit);
    if (own.is_unit ? unit == of.units.number_of(own.begin) : slot >= own.begin && slot < own.end)
      replace_sums<Tile>(params, of, memory, unit, first, parked, lane);
  }
  SliceState state;
  own.combine({of.units, memory, of.first_item, of.row, first + 4 * lane, params.d_v}, of.used, parked, state);
  __syncwarp();
  parked.store(0, state);
  __syncwarp();
}

/// Combines the states of a subtree, in one slice, by all warps of a block: each has neighbouring units, and the first warp
/// merges what they have. All threads call it; between two calls is a barrier.
///
/// A sum that is not finite survives all merges: a warp that has one combines its units again.
/// @param row of all @param shared [warps of the block][memory.n_parked][kParkedState] @param[out] state of the first warp
template <class Tile, class Params>
__device__ __forceinline__ void combine_subtree(const Params& params, const RowOfBlock& of, Count row,
                                                const UnitMemory& memory, const CombinedSubtree& all, int component,
                                                Shared<Bytes16> shared, SliceState& state) {
  const int lane = static_cast<int>(threadIdx.x % kWarp), warp = warp_uniform(static_cast<int>(threadIdx.x / kWarp)),
            n_warps = static_cast<int>(blockDim.x / kWarp);
  const auto memory_of = [&](int i) { return shared + i * memory.n_parked * kParkedState; };
  const auto parked_of = [&](int i) { return ParkedStates(memory_of(i), lane); };
  const RowOfUnits rows{of.units, memory, of.first_item, of.row, component, params.d_v};
  set_empty(state);
  if (all.level < 0) return;
  // Each warp a subtree of one level; or the first one a unit.
  const bool is_unit = all.level <= of.units.log();
  const int log_warps = highest_bit(Count(n_warps)), least = of.units.log() + kLogAtOnce,
            level = all.level - log_warps > least ? all.level - log_warps : least;
  const std::int64_t end_of_all = all.begin + (std::int64_t{1} << all.level),
                     begin = all.begin + (std::int64_t{warp} << level), end = begin + (std::int64_t{1} << level);
  if (begin < end_of_all) {
    const OwnSlots own{begin, end < end_of_all ? end : end_of_all, is_unit};
    own.combine(rows, of.used, parked_of(warp), state);
    if constexpr (IsMmaTile<Tile>) {
      if (is_broken(state)) {
        combine_again<Tile>(params, memory, row, own, component - 4 * lane, memory_of(warp));
        parked_of(warp).load(0, state);
      }
    }
  }
  if (is_unit || n_warps == 1) return;
  __syncwarp();
  parked_of(warp).store(0, state);
  __syncthreads();
  if (warp > 0) return;
  SliceState s[kAtOnce];
  TREE_ATTN_UNROLL
  for (int i = 0; i < kAtOnce; ++i) {
    set_empty(s[i]);
    if (i < n_warps) parked_of(i).load(0, s[i]);
  }
  merge_eight(s);
  state = s[0];
}

/// A block of combine(): one row and slice, and one subtree of the shard.
/// @param waited called once the launch before has ended
/// @paper{alg_3, Alg. 3}
template <class Tile, class Params, class Waited>
__device__ __forceinline__ void combine_block(const Params& params, const UnitMemory& memory, const DeviceOutput& output,
                                              const Waited& waited) {
  launch_dependents();
  Arena arena;
  const Shared<Bytes16> shared = arena.take<Bytes16>(static_cast<int>(blockDim.x / kWarp) * memory.n_parked * kParkedState);
  const Count row = blockIdx.x;
  const int component = static_cast<int>(blockIdx.y) * kSlice + 4 * static_cast<int>(threadIdx.x % kWarp),
            subtree = static_cast<int>(blockIdx.z);
  const Division all(params, memory.rule, memory.log_rows, WarpScan{});
  const RowOfBlock of(params, all, row);
  const CombinedSubtree combined = output.out != nullptr
                                       ? CombinedSubtree::whole(of.used)
                                       : CombinedSubtree::covering(params.shard_of_entry(of.entry), subtree);
  wait_for_previous_launch();
  waited();
  SliceState state;
  combine_subtree<Tile>(params, of, row, memory, combined, component, shared, state);
  if (threadIdx.x < kWarp) CombinedOutput{output, params.n_rows(), row, component, params.d_v}.write(subtree, state);
}

/// Combines the states of units.
/// @tparam Tile ReplacingTile of the thread group of the walks
/// @tparam Params DecodeParams, or ListedParams for leaves in the order of a list
/// - Grid: query rows, slices of kSlice components, and subtrees that cover the shard, or 1 where rows are finished.
/// - Block: a power of two of warps, at most kMostCombining, each with neighbouring units of a row; the first one merges
///   what they have.
/// - Reads: states of units, lengths; of sums that are not finite the queries, keys and values too.
/// - Writes: rows, or the states of the shard; sums that it has replaced.
/// @paper{alg_3, Alg. 3}
template <class Tile, class Params>
__global__ void __launch_bounds__(kMostCombining* kWarp, 2)
    combine(const __grid_constant__ Params params, const __grid_constant__ UnitMemory memory, DeviceOutput output) {
  combine_block<Tile>(params, memory, output, [] {});
}
/// The launch of combine(). @param n_subtrees that cover the shard, or 1 where rows are finished
inline Launch launch_of_combine(const DecodeParams& params, const UnitMemory& memory, const LaunchPlan& plan,
                                std::int64_t n_subtrees) {
  return {.grid = {static_cast<unsigned>(params.n_rows()), static_cast<unsigned>(slices_of(params.d_v)),
                   static_cast<unsigned>(n_subtrees)},
          .block = {static_cast<unsigned>(plan.n_combining * kWarp)},
          .shared_bytes = kKernelBytes + combining_bytes(plan.n_combining, memory.n_parked),
          .continues = true,
          .overlaps = plan.overlaps};
}

/// Launches combine() after the walks of a step, of one stored type. @throws DeviceError if the launch fails
template <class T, class Params>
void run_combine(const Params& params, const UnitMemory& memory, const DeviceOutput& output, const LaunchPlan& plan,
                 Stream stream);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
