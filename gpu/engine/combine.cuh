// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The launch that combines the states of units: finished rows, or the states of the shard (section 5, Alg. 3).
#pragma once

#include "gpu/engine/launch.hpp"
#include "gpu/engine/unit_forest.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Components of a slice of a row, four a lane; states that a warp loads at once; and groups of them, one a level, that wait
/// for what is on their right.
inline constexpr int kSlice = 4 * kWarp, kAtOnce = 8, kLogAtOnce = 3, kMostParked = 14;
/// Slices of a row; one where values have no components, for shift and sum.
TREE_ATTN_HOST_DEVICE constexpr int slices_of(int d_v) { return d_v > kSlice ? (d_v + kSlice - 1) / kSlice : 1; }
/// Warps of a block at most, a power of two; and 16-byte vectors of shared memory of one: of each parked state one a lane,
/// and one of shift and sum.
inline constexpr int kMostCombining = 8, kParkedState = kWarp + 1, kParkedVectors = kMostParked * kParkedState;
constexpr std::size_t combining_bytes(int n_warps) {
  return static_cast<std::size_t>(n_warps * kParkedVectors) * sizeof(Bytes16);
}

/// A slice of a state, four components a lane.
using SliceState = LaneState<4>;

/// Node of the tree whose states one block combines.
struct CombinedNode {
  std::int64_t begin = 0;
  int level = -1;  ///< in leaves; negative: no leaf is below it

  /// The node that has all leaves of a sequence below it; or subtree i of those that cover the shard.
  __device__ __forceinline__ static CombinedNode whole(const UsedSlots& used) {
    if (used.size() == 0) return {};
    const Count last = used.end - 1;
    const int level = used.first == last ? 0 : highest_bit(used.first ^ last) + 1;
    return {std::int64_t{used.first >> level} << level, level};
  }
  __device__ __forceinline__ static CombinedNode covering(KeyRange shard, int i) {
    for (; i > 0; --i) shard.begin = first_subtree(shard.begin, shard.end).end();
    const Subtree subtree = first_subtree(shard.begin, shard.end);
    // A leaf in which the shard ends is the first of the subtrees that share it.
    if (subtree.begin() % kLeafKeys != 0) return {};
    return {leaf_at(subtree.begin()), subtree.level > kLeafLevel ? subtree.level - kLeafLevel : 0};
  }
};

/// States of a row that a warp has combined and that wait in shared memory.
class ParkedStates {
 public:
  __device__ __forceinline__ ParkedStates(Shared<Bytes16> memory, int lane) : memory_(memory), lane_(lane) {}
  __device__ __forceinline__ void load(int i, SliceState& state) const {
    set_state_vector(state, 0, load16(memory_ + (i * kParkedState + kWarp)));
    set_state_vector(state, 1, load16(memory_ + (i * kParkedState + lane_)));
  }
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

/// Merges eight neighbouring nodes of one level, in pairs.
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

/// Row of a block, known to all its warps: its units, and where their states lie.
struct RowOfBlock {
  Units units;
  UsedSlots used;
  Count entry = 0, first_item = 0, row = 0;  ///< the batch entry, the work item of unit 0, the row in its query tile

  template <class Params>
  __device__ __forceinline__ RowOfBlock(const Params& params, const Division& all, Count row_of_all) {
    const Count kv_head = row_of_all / Count(params.group), in_group = row_of_all % Count(params.group),
                tile = in_group >> all.log_rows();
    entry = params.entry_of(kv_head), row = in_group - (tile << all.log_rows());
    units = all.units(params, entry), used = params.used_slots(entry);
    first_item = (entry == 0 ? 0 : all.n_items(params, entry, WarpScan{})) +
                 (params.head_of(kv_head) * all.tiles_per_kv_head() + tile) * units.size();
  }
};

/// Combines the states below a node, in one slice, by all warps of a block: each has neighbouring units, and the first warp
/// merges what they have. All threads call it; between two calls is a barrier.
/// @param shared [warps of the block][kParkedVectors] @param[out] state of the first warp
__device__ __forceinline__ void combine_node(const RowOfBlock& of, const UnitMemory& memory, const CombinedNode& node,
                                             int component, int d_v, Shared<Bytes16> shared, SliceState& state) {
  const int lane = static_cast<int>(threadIdx.x % kWarp), warp = warp_uniform(static_cast<int>(threadIdx.x / kWarp)),
            n_warps = static_cast<int>(blockDim.x / kWarp);
  const auto parked_of = [&](int i) { return ParkedStates(shared + i * kParkedVectors, lane); };
  const RowOfUnits rows{of.units, memory, of.first_item, of.row, component, d_v};
  set_empty(state);
  if (node.level < 0) return;
  if (node.level <= of.units.log()) {
    if (warp == 0) rows.load(node.begin, state);
    return;
  }
  // Each warp a node of one level.
  const int log_warps = highest_bit(Count(n_warps)), least = of.units.log() + kLogAtOnce,
            level = node.level - log_warps > least ? node.level - log_warps : least;
  const std::int64_t end_of_node = node.begin + (std::int64_t{1} << node.level),
                     begin = node.begin + (std::int64_t{warp} << level), end = begin + (std::int64_t{1} << level);
  if (begin < end_of_node) rows.combine(begin, end < end_of_node ? end : end_of_node, of.used, parked_of(warp), state);
  if (n_warps == 1) return;
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
/// @paper{alg_3, Alg. 3}
template <class Params>
__device__ __forceinline__ void combine_block(const Params& params, const UnitMemory& memory, const DeviceOutput& output) {
  launch_dependents();
  Arena arena;
  const Shared<Bytes16> shared = arena.take<Bytes16>(static_cast<int>(blockDim.x / kWarp) * kParkedVectors);
  const Count row = blockIdx.x;
  const int component = static_cast<int>(blockIdx.y) * kSlice + 4 * static_cast<int>(threadIdx.x % kWarp),
            subtree = static_cast<int>(blockIdx.z);
  const Division all(params, memory.rule, memory.log_rows, WarpScan{});
  const RowOfBlock of(params, all, row);
  const CombinedNode node = output.out != nullptr ? CombinedNode::whole(of.used)
                                                  : CombinedNode::covering(params.shard_of_entry(of.entry), subtree);
  wait_for_previous_launch();
  SliceState state;
  combine_node(of, memory, node, component, params.d_v, shared, state);
  if (threadIdx.x < kWarp) CombinedOutput{output, params.n_rows(), row, component, params.d_v}.write(subtree, state);
}

/// Grid: query rows, slices of kSlice components, and subtrees that cover the shard, or 1 where rows are finished. Block: a
/// power of two of warps, at most kMostCombining, each with neighbouring units of a row; the first one merges what they
/// have. Reads: states of units, lengths. Writes: rows, or the states of the shard.
/// @tparam Params DecodeParams, or ListedParams for leaves in the order of a list
/// @paper{alg_3, Alg. 3}
template <class Params>
__global__ void __launch_bounds__(kMostCombining* kWarp)
    combine(Params params, const __grid_constant__ UnitMemory memory, DeviceOutput output) {
  combine_block(params, memory, output);
}
/// The launch of combine(). @param n_subtrees that cover the shard, or 1 where rows are finished
inline Launch launch_of_combine(const DecodeParams& params, const LaunchPlan& plan, std::int64_t n_subtrees) {
  return {.grid = {static_cast<unsigned>(params.n_rows()), static_cast<unsigned>(slices_of(params.d_v)),
                   static_cast<unsigned>(n_subtrees)},
          .block = {static_cast<unsigned>(plan.n_combining * kWarp)},
          .shared_bytes = kKernelBytes + combining_bytes(plan.n_combining),
          .continues = true,
          .overlaps = plan.overlaps};
}

/// Launches it after the walks of a step. @throws DeviceError if the launch fails
void run_combine(const DecodeParams& params, const UnitMemory& memory, const DeviceOutput& output, const LaunchPlan& plan,
                 Stream stream);
void run_combine(const ListedParams& params, const UnitMemory& memory, const DeviceOutput& output, const LaunchPlan& plan,
                 Stream stream);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
