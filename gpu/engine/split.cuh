// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The library kernel for short sequences: a pipeline walks over the splits of a query tile, which are one cluster
/// that merges through each other's shared memory (compute capability 9; section 5, Alg. 3).
///
/// Left open in an earlier version of the paper: blocks of a cluster can read each other's shared memory, which could speed
/// up the reduction inside one device. Up to 16k keys, the splits of a query tile are one cluster of at most 16 blocks. Each
/// block keeps its forest in shared memory, and after a barrier of the cluster the first block reads those of the others
/// where they are. Longer sequences, and shapes whose clusters would leave multiprocessors idle, are left to equal runs.
///
/// It is a dependent launch (Launch::overlaps), as equal runs are: it may start while the launch before it still runs, which
/// in a step of a session is the kernel that appends a position. That one calls launch_dependents() first of all; this one
/// starts its first copies, of older positions, before it calls wait_for_previous_launch(). The contract is begin_early()'s.
/// Expected: a release, an atomic and loads from L2 become a barrier of the cluster and loads from neighbours, about 1 us
/// less at the end of a launch of 10 to 20; and the start of the launch is hidden, with the first copies. Measured
/// on an H200, 16 heads and 512 keys: 4.9 us after the last walk, where equal runs take 5.7.
#pragma once

#include "gpu/engine/join.cuh"
#include "gpu/engine/pipelines.cuh"

#include <algorithm>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// The rows of a query tile: its kv head, and its first row in the group of that.
struct QueryTile {
  std::int64_t kv_head, first_row;

  /// @param log_rows rows of a query tile, as a power of two
  __device__ __forceinline__ static QueryTile of(const DecodeParams& params, std::int64_t i, int log_rows) {
    const Count n_of_kv_head = ((Count(params.group) - 1) >> log_rows) + 1;
    return {Count(i) / n_of_kv_head, Count(i) % n_of_kv_head << log_rows};
  }
};

/// Query tiles of a problem: every n_row_tiles times kRows queries of a group.
template <IsThreadGroup ThreadGroup>
std::int64_t n_query_tiles(const DecodeParams& params, int n_row_tiles) {
  const std::int64_t n_rows = n_row_tiles * ThreadGroup::kRows;
  return params.batch_kv_heads() * ((params.group + n_rows - 1) / n_rows);
}

/// Tiles of rows that have so many slots, one on CUDA cores; and their rows, as a power of two.
template <IsThreadGroup ThreadGroup>
TREE_ATTN_HOST_DEVICE constexpr int row_tiles_of_slots(int n_slots) {
  return IsMmaTile<ThreadGroup> ? n_slots / ThreadGroup::kSlots : 1;
}
template <IsThreadGroup ThreadGroup>
TREE_ATTN_HOST_DEVICE constexpr int log_rows_of_slots(int n_slots) {
  constexpr int kLogRows = ThreadGroup::kRows == 8 ? 3 : ThreadGroup::kRows == 4 ? 2 : 0;
  static_assert(1 << kLogRows == ThreadGroup::kRows);
  return kLogRows + (row_tiles_of_slots<ThreadGroup>(n_slots) >> 1);
}

/// Forests in the workspace: of every thread group of every split of every query tile. A query tile is the rows that one
/// thread group serves, or a team of them, on all keys of their kv head.
struct SplitWorkspace {
  float* floats = nullptr;
  Count n_thread_group = 0;                            ///< floats of one forest, of which there is one a slot
  int n_thread_groups = 1, n_splits = 1, n_slots = 1;  ///< slots: of all tiles of rows

  /// That of the blocks of a plan; without memory, for its size.
  template <IsThreadGroup ThreadGroup>
  static SplitWorkspace of(const DecodeParams& params, const LaunchPlan& plan, float* floats) {
    const int n_thread_groups = n_thread_groups_of<ThreadGroup>(plan.n_threads, plan.n_row_tiles);
    return {floats, Count(forest_floats<ThreadGroup>(params, std::int64_t{plan.n_splits} * n_thread_groups)),
            n_thread_groups, plan.n_splits, ThreadGroup::kSlots * plan.n_row_tiles};
  }
  /// Floats of one query tile, and where its forests lie.
  std::int64_t n_floats() const { return std::int64_t{n_splits} * n_thread_groups * n_thread_group * n_slots; }
  TREE_ATTN_HOST_DEVICE float* of_thread_group(Count query_tile, Count split, Count thread_group) const {
    const Count i = (query_tile * n_splits + split) * n_thread_groups + thread_group;
    return floats + std::int64_t{i} * (n_thread_group * n_slots);
  }
};

/// Most blocks of a cluster. A device of compute capability 9 may hold fewer of more than 8 than it has multiprocessors for,
/// or none.
inline constexpr int kLargestCluster = 16;
/// Leaves of a short sequence, 16k keys; and of one of its splits, whose forest then fits into the block's shared memory.
inline constexpr std::int64_t kShortLeaves = 256, kShortSplitLeaves = 32;
/// Thread groups of a block on a device with clusters, at least.
inline constexpr std::int64_t kFewestGroups = 4;

/// The forest of a split, in front of the shared memory that its pipeline no longer needs.
template <IsThreadGroup ThreadGroup>
struct ForestInCluster {
  /// Subtrees that cover kShortSplitLeaves neighbouring leaves, at most; floats of one slot, and of all.
  static constexpr int kSubtrees = 2 * 5, kSlot = kSubtrees * GroupForest<ThreadGroup>::kEntry,
                       kForest = ThreadGroup::kSlots * kSlot;
  static_assert(kShortSplitLeaves <= 1 << kSubtrees / 2);
  /// Scratch memory for the forest, and beside it a join of two parts.
  static constexpr int kFloats = kForest + kJoinFloats + 2 * kSubtrees * kWarp * SliceStates<ThreadGroup>::kFloats;
};

/// A block of the kernel. Grid: splits, query tiles. The merges and their order follow from the lengths alone.
/// @param forests see SplitWorkspace
/// @paper{alg_3, Alg. 3}
template <IsPipeline Pipeline>
__device__ __forceinline__ void short_end_block(const DecodeParams& params, const DeviceOutput& output,
                                                const typename Pipeline::Arguments& arguments,
                                                const SplitWorkspace& forests) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using ThreadGroup = typename Pipeline::ThreadGroup;
  using InCluster = ForestInCluster<ThreadGroup>;
  constexpr bool kFits = InCluster::kFloats <= Pipeline::fit(kMostSharedBytes - kKernelBytes, 1).n_scratch_floats;
  if constexpr (Pipeline::kIsCompiled && kFits) {
    launch_dependents();
    Arena arena;
    Pipeline pipeline(arena, arguments);
    const Count query_tile = blockIdx.y;
    const int n_row_tiles = row_tiles_of_slots<ThreadGroup>(forests.n_slots);
    const QueryTile tile = QueryTile::of(params, query_tile, log_rows_of_slots<ThreadGroup>(forests.n_slots));
    const int split = static_cast<int>(blockIdx.x), n_splits = forests.n_splits;
    const KeyRange whole = params.leaves(tile.kv_head), range = split_range(whole, split, n_splits);

    // Every thread group walks over its part of the split; the block joins them.
    pipeline(params, tile.kv_head, tile.first_row, range, forests.of_thread_group(query_tile, split, 0),
             forests.n_thread_group);
    __syncthreads();
    const Scratch all = pipeline.scratch(), scratch{all.memory + InCluster::kForest, all.n_floats - InCluster::kForest};
    TREE_ATTN_LOOP
    for (int t = 0; t < n_row_tiles; ++t) {
      const std::int64_t first_row = tile.first_row + t * ThreadGroup::kRows;
      const int n_rows = rows_in_use(params, first_row, ThreadGroup::kRows);
      if (n_rows <= 0) break;
      // The forests of the tile of rows before have been read.
      if (t > 0) cluster_sync();
      join_splits<ThreadGroup>(
          scratch, n_rows, forests.of_thread_group(query_tile, split, 0), forests.n_thread_group, range,
          forests.n_thread_groups,
          [&](const auto& slice, const auto& roots) {
            store_forest<ThreadGroup, InShared>(slice, roots, all.memory, InCluster::kSlot);
          },
          forests.n_slots, t * ThreadGroup::kSlots);

      // The first block joins the splits where their forests lie, and writes the rows.
      cluster_sync();
      if (cluster_rank() != 0) continue;
      join_parts<ThreadGroup>(
          scratch, n_rows, whole, n_splits, [whole, n_splits](int i) { return split_range(whole, i, n_splits); },
          [&](const auto& slice, int i) { return remote(all.memory, i) + slice.slot * InCluster::kSlot; },
          [&](const auto& slice, const auto& roots) {
            write_output<ThreadGroup>(params, output, tile.kv_head, first_row, slice, roots, whole);
          });
    }
    // A block that has ended has no shared memory to read.
    cluster_meet();
  }
#endif
}

/// The kernel. Neither a forest of a split nor a counter is in global memory. The merges and their order are those of the
/// other kernels, and so are the bits.
/// @paper{alg_3, Alg. 3}
template <IsPipeline Pipeline>
__global__ void __launch_bounds__(Pipeline::kThreads, 1)
    short_end(DecodeParams params, DeviceOutput output, const __grid_constant__ typename Pipeline::Arguments arguments,
              SplitWorkspace forests) {
  short_end_block<Pipeline>(params, output, arguments, forests);
}

/// Launches a kernel that plan_short_end() has planned. @param arguments of its pipeline
template <IsPipeline Pipeline, class Kernel>
void launch_splits(const Kernel& kernel, const DecodeParams& params, const DeviceOutput& output,
                   const typename Pipeline::Arguments& arguments, const LaunchPlan& plan, const Workspace& workspace,
                   Stream stream) {
  using ThreadGroup = typename Pipeline::ThreadGroup;
  const std::int64_t query_tiles = n_query_tiles<ThreadGroup>(params, plan.n_row_tiles);
  const Launch config{.grid = {static_cast<unsigned>(plan.n_splits), static_cast<unsigned>(query_tiles)},
                      .block = {static_cast<unsigned>(plan.n_threads)},
                      .shared_bytes = plan.shared_bytes,
                      .cluster = plan.cluster,
                      .overlaps = plan.overlaps};
  launch(kernel, config, stream, params, output, arguments, SplitWorkspace::of<ThreadGroup>(params, plan, workspace.floats));
}

/// Blocks of the cluster that a query tile gets, or 0 if it should have none: too many leaves for a cluster, more query
/// tiles than the device holds clusters at once, or so few that clusters would leave a tenth of it idle where equal runs
/// would not. For the rate of copies follows the number of multiprocessors; but where no thread group has a second leaf, the
/// walk takes as long on fewer of them. An H200 holds 15 clusters of 8 or 7, 20 of 6 and 7 of 16.
/// @param wanted 0: as many as there are leaves and the device holds for all query tiles at once, up to kLargestCluster;
/// clusters of a size that is asked for may take turns
/// @param n_multiprocessors of the device
/// @param n_resident size -> clusters that the device holds at once, see n_resident_clusters()
template <class Resident>
int choose_cluster(const DecodeParams& params, std::int64_t n_query_tiles, int wanted, std::int64_t n_multiprocessors,
                   const Resident& n_resident) {
  const std::int64_t n_leaves = leaves_of({params.begin, params.end});
  const std::int64_t at_once = wanted > 0 ? 1 : std::max<std::int64_t>(1, n_query_tiles);
  if (n_leaves > kShortLeaves) return 0;
  const std::int64_t least = std::max<std::int64_t>(wanted, (n_leaves + kShortSplitLeaves - 1) / kShortSplitLeaves);
  std::int64_t n = std::min<std::int64_t>(wanted > 0 ? wanted : n_leaves, kLargestCluster);
  while (n >= least && n_resident(static_cast<int>(n)) < at_once) --n;
  if (n < least) return 0;
  const bool leaves_idle =
      n_leaves > kFewestGroups * n && 10 * n * n_query_tiles < 9 * std::min(n_multiprocessors, n_leaves * n_query_tiles);
  return wanted == 0 && leaves_idle ? 0 : static_cast<int>(n);
}

/// Plans a launch by clusters for every shape of one stored type, if the shape and the device have use for them: else
/// LaunchPlan::cluster is 0.
template <class T>
LaunchPlan plan_short_end(const DecodeParams& params, const LaunchOptions& options);
template <class T>
void run_short_end(const DecodeParams& params, const DeviceOutput& output, const LaunchPlan& plan,
                   const Workspace& workspace, Stream stream);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
