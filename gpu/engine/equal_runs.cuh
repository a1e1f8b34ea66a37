// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The library kernel: equal runs of work over all blocks, any thread group, one launch (section 5, Alg. 3).
///
/// A block is not one split of one query. The leaves of all query tiles of the batch form one sequence, and block g of G
/// takes the g-th part of it, wherever that begins and ends (division.hpp). So neither 16 heads on 132 multiprocessors
/// nor one long sequence among short ones leave a multiprocessor idle: all end within 64 keys of each other. One kernel for
/// all shapes: tensor cores for 16 bits in values of up to 512 elements, sub-warps with rings for all else.
#pragma once

#include "gpu/engine/division.hpp"
#include "gpu/engine/join.cuh"
#include "gpu/engine/pipelines.cuh"
#include "gpu/engine/split.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// What SerialScan does, by a warp: all lanes call it with the same arguments and get the same result. One
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

/// Where the forests of blocks lie: those of all thread groups, none where blocks have teams, then those of work ranges. A
/// block has at most two work ranges whose query tile it shares with others: one that continues from the block before, and
/// one that continues in the next. Their forests stay until the last of the sharing blocks has joined them; that of a team
/// lies where its first had its own.
struct EqualRunsWorkspace {
  float* floats = nullptr;
  std::int64_t first_work_range = 0;           ///< floats before the forests of work ranges
  Count n_thread_group = 0, n_work_range = 0;  ///< floats of one forest, of which there is one a slot
  int n_thread_groups = 1, n_slots = 1;        ///< slots: of all tiles of rows
  Count n_tiles = 0;                           ///< query tiles, whose counters are before those of the teams

  /// Floats of a block: two work ranges, and its thread groups.
  std::int64_t n_floats() const { return (2 * std::int64_t{n_work_range} + n_thread_groups * n_thread_group) * n_slots; }
  /// The number of a work range, and of the counter of the team that begins with it.
  TREE_ATTN_HOST_DEVICE static Count number_of(Count block, bool began_before) { return 2 * block + (began_before ? 0 : 1); }
  TREE_ATTN_HOST_DEVICE float* of_work_range(Count block, bool began_before) const {
    return floats + first_work_range + std::int64_t{number_of(block, began_before)} * (n_work_range * n_slots);
  }
  TREE_ATTN_HOST_DEVICE float* of_thread_group(Count block, Count thread_group) const {
    return floats + std::int64_t{block * n_thread_groups + thread_group} * (n_thread_group * n_slots);
  }
};

/// Whether blocks that share a query tile are joined in teams, and then the teams: for four warps on tensor cores, whose
/// states are long. A block then has one thread group for a tile of rows, whose forest is that of the work range.
template <IsThreadGroup ThreadGroup>
inline constexpr bool kHasTeams = ThreadGroup::kLanes > kWarp;

/// Neighbouring blocks of a team, as a power of two: all of up to eight, else about as many as there are teams.
TREE_ATTN_HOST_DEVICE constexpr int log_team(int n_sharing) {
  int log = 3;
  if (n_sharing > 8)
    for (log = 2; 2 << (2 * log) < n_sharing;) ++log;
  return log;
}

/// What a block joins of those that share its query tile: itself, its team, the teams; or itself, then all.
template <bool kHasTeams>
struct SharingBlocks {
  int begin, end, log_part = 0;  ///< blocks [begin, end), in parts of 2^log_part, of which the last may have fewer
  __device__ __forceinline__ int n_parts() const { return kHasTeams ? ((end - begin - 1) >> log_part) + 1 : end; }
  __device__ __forceinline__ int begin_of(int part) const { return kHasTeams ? begin + (part << log_part) : part; }
};

/// Writes the result of a joined query tile: finished rows, or the states of the shard, in memory. The other end
/// is OneShotEpilogue, which has the same members.
struct WriteEpilogue {
  DeviceOutput result;

  struct Tiles {};  ///< what the block remembers of its query tiles, in shared memory
  __device__ __forceinline__ static Tiles take(Arena&) { return {}; }
  /// Where a joined query tile is written.
  __device__ __forceinline__ const DeviceOutput& output() const { return result; }
  /// The block has written a query tile, of 2^log_rows rows if the group has so many. All of its threads call it.
  template <class Params>
  __device__ __forceinline__ void tile_joined(const Params&, const WorkRange&, int /*log_rows*/, Tiles) const {}
  /// The block has done its last work range. All of its threads call it.
  template <IsThreadGroup ThreadGroup, class Params>
  __device__ __forceinline__ void block_done(const Params&, int /*log_rows*/, Scratch, Tiles) const {}
};

/// A block of the library kernel.
///
/// Every warp works out the first work range by itself, and starts its first copies before the launch before this one has
/// ended, see begin_early(): no barrier stands before them. What is known about a work range is kept in shared memory as
/// well, and read from there after the walk: it would fill the registers that the pipeline needs.
/// @param counters one per query tile, and then those of teams
/// @paper{alg_3, Alg. 3}
template <IsPipeline Pipeline, class Epilogue>
__device__ __forceinline__ void equal_runs_block(const typename Pipeline::Params& params, const Epilogue& epilogue,
                                                 const typename Pipeline::Arguments& arguments,
                                                 const EqualRunsWorkspace& forests, unsigned* counters) {
  using ThreadGroup = typename Pipeline::ThreadGroup;
  constexpr bool kInTeams = kHasTeams<ThreadGroup>;
  if constexpr (Pipeline::kIsCompiled) {
    launch_dependents();
    Arena arena;
    const Shared<int> is_last = arena.take<int>(1);
    const Shared<WorkPartition> partition = arena.take<WorkPartition>(1);
    const Shared<WorkRange> work_range = arena.take<WorkRange>(1);
    const typename Epilogue::Tiles tiles = epilogue.take(arena);
    Pipeline pipeline(arena, arguments);
    const int n_row_tiles = row_tiles_of_slots<ThreadGroup>(forests.n_slots),
              log_rows = log_rows_of_slots<ThreadGroup>(forests.n_slots);
    WorkPartition all(params, log_rows, gridDim.x, WarpScan{});
    Count next = all.begin_of(blockIdx.x), end_of_run = all.begin_of(blockIdx.x + 1);
    if (next == end_of_run) return wait_for_previous_launch();
    FoundEntry found{};

    while (true) {
      const Count block = Count(opaque(static_cast<int>(blockIdx.x)));

      // Every thread group walks over its part of the work range.
      {
        const WorkRange work = all.work_range_at(params, next, end_of_run, found, WarpScan{});
        if (threadIdx.x == 0) partition[0] = all, work_range[0] = work;
        // Opaque, so that the walk holds none of the sums that have led to them.
        pipeline(params, opaque(static_cast<int>(work.kv_head)), opaque(static_cast<int>(work.first_row)), work.positions,
                 kInTeams ? forests.of_work_range(block, next > work.tile_begin) : forests.of_thread_group(block, 0),
                 kInTeams ? forests.n_work_range : forests.n_thread_group);
      }
      __syncthreads();

      // The block joins its thread groups; if others share the query tile and it is the last of its team, the team; and if
      // that is the last one, the teams.
      const WorkRange work = work_range[0];
      all = partition[0];
      end_of_run = all.begin_of(block + 1);
      const Count first = all.block_of(work.tile_begin);
      const int n_sharing = static_cast<int>(all.block_of(work.tile_begin + work.n_tile_items - 1) - first) + 1;
      const int own = static_cast<int>(block - first);
      const auto positions_of = [&](int from, int to) {
        const Count begin = all.begin_of(first + from);
        return work.positions_of(begin > work.tile_begin ? begin : work.tile_begin, all.begin_of(first + to));
      };
      SharingBlocks<kInTeams> joined{own, own + 1};
      bool joins_blocks = false, is_end = false;
      TREE_ATTN_LOOP
      do {
        const auto positions = [&](int i) {
          return params.in_tree(work.kv_head, joins_blocks ? positions_of(joined.begin_of(i), joined.begin_of(i + 1))
                                                           : split_range(work.positions, i, forests.n_thread_groups));
        };
        is_end = kInTeams ? joined.end - joined.begin == n_sharing : joins_blocks || n_sharing == 1;
        const KeyRange range = !joins_blocks ? work.positions
                               : kInTeams    ? positions_of(joined.begin, joined.end)
                                             : work.whole;
        // The forest of a team of one is where it is to be.
        const int n_joined = kInTeams && !is_end && joined.n_parts() == 1 ? 0 : n_row_tiles;
        TREE_ATTN_LOOP
        for (int t = 0; t < n_joined; ++t) {
          const int first_slot = t * ThreadGroup::kSlots;
          const std::int64_t first_row = work.first_row + t * ThreadGroup::kRows;
          const int n_here = rows_in_use(params, first_row, ThreadGroup::kRows);
          if (n_here <= 0) break;
          if (t > 0) __syncthreads();
          const auto forest_of = [&](const auto& slice, int i) {
            const int from = joined.begin_of(i);
            const bool is_of_block = kInTeams || joins_blocks;
            const float* const part =
                is_of_block ? forests.of_work_range(first + from, from > 0) : forests.of_thread_group(block, i);
            const Count n_forest = is_of_block ? forests.n_work_range : forests.n_thread_group;
            return part + (first_slot + slice.slot) * n_forest;
          };
          join_parts<ThreadGroup>(pipeline.scratch(), n_here, params.in_tree(work.kv_head, range),
                                  joins_blocks ? joined.n_parts() : forests.n_thread_groups, positions, forest_of,
                                  [&](const auto& slice, const auto& roots) {
                                    if (is_end) {
                                      write_output<ThreadGroup>(params, epilogue.output(), work.kv_head, first_row, slice,
                                                                roots, params.in_tree(work.kv_head, work.whole));
                                    } else {
                                      const int place = kInTeams ? joined.begin : own;
                                      store_forest<ThreadGroup>(slice, roots,
                                                                forests.of_work_range(first + place, place > 0) +
                                                                    first_slot * forests.n_work_range,
                                                                forests.n_work_range);
                                    }
                                  });
        }
        if (is_end) break;
        unsigned* counter = counters + work.query_tile;
        if constexpr (kInTeams) {
          const int log = log_team(n_sharing), team = own >> log << log, end_of_team = team + (1 << log);
          joined = joins_blocks ? SharingBlocks<kInTeams>{0, n_sharing, log}
                                : SharingBlocks<kInTeams>{team, end_of_team < n_sharing ? end_of_team : n_sharing};
          if (joined.end - joined.begin < n_sharing)
            counter = counters + (forests.n_tiles + forests.number_of(first + team, team > 0));
        } else {
          joined.end = n_sharing;
        }
        joins_blocks = arrives_last(counter, static_cast<unsigned>(joined.n_parts()), is_last);
      } while (joins_blocks);
      if (is_end) epilogue.tile_joined(params, work, log_rows, tiles);

      next = work.last;
      found = work.found;
      if (next == end_of_run) return epilogue.template block_done<ThreadGroup>(params, log_rows, pipeline.scratch(), tiles);
      // The next work range uses all this memory again.
      Pipeline::publish_scratch();
      __syncthreads();
    }
  }
}

/// The library kernel on one device.
/// @param counters as in equal_runs_block()
/// @paper{alg_3, Alg. 3}
template <IsPipeline Pipeline>
__global__ void __launch_bounds__(Pipeline::kThreads, 1)
    equal_runs(typename Pipeline::Params params, const __grid_constant__ WriteEpilogue epilogue,
               const __grid_constant__ typename Pipeline::Arguments arguments, EqualRunsWorkspace forests,
               unsigned* counters) {
  equal_runs_block<Pipeline>(params, epilogue, arguments, forests, counters);
}

/// What a launch needs, on the host.
template <IsPipeline Pipeline>
EqualRunsWorkspace equal_runs_workspace(const typename Pipeline::Params& params, const LaunchPlan& plan, float* floats) {
  using ThreadGroup = typename Pipeline::ThreadGroup;
  const std::int64_t n_leaves = leaves_of({params.begin, params.end}), n_blocks = plan.n_blocks,
                     n_tiles = n_query_tiles<ThreadGroup>(params, plan.n_row_tiles),
                     a_block = std::min(n_leaves, (n_tiles * n_leaves + n_blocks - 1) / n_blocks),
                     a_team = std::min(n_leaves, kHasTeams<ThreadGroup> ? a_block << log_team(plan.n_blocks) : a_block);
  using Forest = GroupForest<ThreadGroup>;
  const int n_thread_groups = n_thread_groups_of<ThreadGroup>(plan.n_threads, plan.n_row_tiles),
            n_slots = ThreadGroup::kSlots * plan.n_row_tiles;
  const std::int64_t a_worker = (a_block + n_thread_groups - 1) / n_thread_groups,
                     n_thread_group =
                         kHasTeams<ThreadGroup> ? 0 : Forest::n_floats(params.longest_in_tree(a_worker * kLeafKeys));
  return {floats,
          n_blocks * n_thread_groups * n_thread_group * n_slots,
          Count(n_thread_group),
          Count(Forest::n_floats(params.longest_in_tree(a_team * kLeafKeys))),
          n_thread_groups,
          n_slots,
          Count(n_tiles)};
}

/// Launches a kernel whose blocks are equal_runs_block(). @param config what it asks for beside blocks and memory
template <IsPipeline Pipeline, class Kernel, class Result>
void launch_runs(const Kernel& kernel, Launch config, const typename Pipeline::Params& params, const Result& result,
                 const LaunchPlan& plan, const Workspace& workspace, Stream stream) {
  config.grid = {static_cast<unsigned>(plan.n_blocks)}, config.block = {static_cast<unsigned>(plan.n_threads)};
  config.shared_bytes = plan.shared_bytes;
  launch(kernel, config, stream, params, result, Pipeline::arguments(params, plan),
         equal_runs_workspace<Pipeline>(params, plan, workspace.floats), workspace.counters);
}

/// Plans, or launches, for every shape of one stored type, in either order of leaves: DecodeParams or ListedParams. Types
/// and orders are compiled in files of their own.
template <class T, class Params>
LaunchPlan plan_equal_runs(const Params& params, const LaunchOptions& options);
template <class T, class Params>
void run_equal_runs(const Params& params, const DeviceOutput& output, const LaunchPlan& plan, const Workspace& workspace,
                    Stream stream);

/// The same for the type at hand. A plan holds for any lengths, and for any contents of the lists. @pre the step takes the
/// shape
/// @throws DeviceError if the launch fails
template <class Params>
LaunchPlan plan_equal_runs(const Params& params, DType dtype, const LaunchOptions& options) {
  LaunchPlan plan;
  with_type(dtype, [&](auto type) { plan = plan_equal_runs<decltype(type)>(params, options); });
  return plan;
}
template <class Params>
void run_equal_runs(const Params& params, DType dtype, const DeviceOutput& output, const LaunchPlan& plan,
                    const Workspace& workspace, Stream stream) {
  with_type(dtype, [&](auto type) { run_equal_runs<decltype(type)>(params, output, plan, workspace, stream); });
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
