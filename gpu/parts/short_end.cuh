// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The library kernel for short sequences: the splits of a query tile are one cluster and merge through each other's
/// shared memory (section 5, Alg. 3; compute capability 9).
///
/// Left open in an earlier version of the paper: blocks of a cluster can read each other's shared memory, which could speed
/// up the reduction inside one device. Up to 16k keys, the splits of a query tile are one cluster of at most 16 blocks. Each
/// block keeps its forest in shared memory, and after a barrier of the cluster the first block reads those of the others
/// where they are. Longer sequences, and shapes whose clusters would leave multiprocessors idle, are left to equal runs.
///
/// Both kernels are dependent launches (Launch::overlaps): they may start while the launch before them still runs, which in
/// a step of a session is the kernel that appends a position. That one calls launch_dependents() first of all; these start
/// their first copies, of older positions, before they call wait_for_previous_launch(). The contract is begin_early()'s.
/// Expected: a release, an atomic and loads from L2 become a barrier of the cluster and loads from neighbours, about 1 us
/// less at the end of a launch of 10 to 20; and the start of the launch is hidden, with the first copies. Not measured.
#pragma once

#include "gpu/parts/join.cuh"
#include "gpu/parts/pipelines.hpp"
#include "gpu/parts/split_kernel.cuh"

#include <algorithm>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Most blocks of a cluster. A device of compute capability 9 may hold fewer of more than 8 than it has multiprocessors for,
/// or none.
inline constexpr int kLargestCluster = 16;
/// Leaves of a short sequence, 16k keys; and of one of its splits, whose forest then fits into the block's shared memory.
inline constexpr std::int64_t kShortLeaves = 256, kShortSplitLeaves = 32;

/// The end: the splits of a query tile are a cluster. The forest of each lies in front of the memory that its
/// pipeline no longer needs, and the first block joins them where they lie.
template <IsWorker Worker>
class InCluster {
  /// Subtrees that cover kShortSplitLeaves neighbouring leaves, at most; floats of the forest of one slot, and of all.
  static constexpr int kSubtrees = 2 * 5, kForest = kSubtrees * WorkerForest<Worker>::kEntry,
                       kForests = Worker::kSlots * kForest;
  static_assert(kShortSplitLeaves <= 1 << kSubtrees / 2);

 public:
  /// Scratch memory that it takes, for the forest and beside it a join of two parts.
  static constexpr int kFloats = kForests + kJoinFloats + 2 * kSubtrees * kWarp * ColumnStates<Worker>::kFloats;

  __device__ __forceinline__ InCluster(Arena&, const SplitWorkspace&) {}
  __device__ __forceinline__ static Scratch rest(Scratch all) { return {all.memory + kForests, all.n_floats - kForests}; }
  __device__ __forceinline__ static void keep(const Column<Worker>& column, const JoinedRoots<Worker>& roots, Scratch all) {
    store_forest<Worker, InShared>(column, roots, all.memory, kForest);
  }
  __device__ __forceinline__ static bool joins() {
    cluster_sync();
    return cluster_rank() == 0;
  }
  __device__ __forceinline__ static void copy(const Column<Worker>& column, int split, int j,
                                              const ColumnStates<Worker>& states, int place, Scratch all) {
    states.copy_shared(place, column, remote(all.memory, split) + column.slot * kForest, j);
  }
  /// A block that has ended has no shared memory to read.
  __device__ __forceinline__ static void done() { cluster_sync(); }
};

/// A block of the kernel.
/// @paper{alg_3, Alg. 3}
template <IsPipeline Pipeline>
__device__ __forceinline__ void short_end_block(const DecodeParams& params, const DeviceOutput& output,
                                                const typename Pipeline::Arguments& arguments,
                                                const SplitWorkspace& forests) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using End = InCluster<typename Pipeline::Worker>;
  constexpr bool kFits = End::kFloats <= Pipeline::fit(kMostSharedBytes - kKernelBytes).n_scratch_floats;
  if constexpr (Pipeline::kIsCompiled && kFits) {
    launch_dependents();
    split_block<Pipeline, End>(params, output, arguments, forests);
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

/// Blocks of the cluster that a query tile gets, or 0 if it should have none: too many leaves for a cluster, more query
/// tiles than the device holds clusters at once, or so few that clusters would leave a tenth of it idle where equal runs
/// would not. On 132 multiprocessors 16 query tiles get clusters of 8, and 8 query tiles get clusters of 16 if the device
/// holds 8 of those at once.
/// @param wanted 0: as many as there are leaves and the device holds for all query tiles at once, up to kLargestCluster;
/// clusters of a size that is asked for may take turns
/// @param n_resident size -> clusters that the device holds at once, see n_resident_clusters()
template <class Resident>
int choose_cluster(const DecodeParams& params, std::int64_t n_query_tiles, int wanted, const Resident& n_resident) {
  const std::int64_t n_leaves = leaves_of({params.begin, params.end});
  const std::int64_t at_once = wanted > 0 ? 1 : std::max<std::int64_t>(1, n_query_tiles);
  if (n_leaves > kShortLeaves) return 0;
  const std::int64_t least = std::max<std::int64_t>(wanted, (n_leaves + kShortSplitLeaves - 1) / kShortSplitLeaves);
  std::int64_t n = std::min<std::int64_t>(wanted > 0 ? wanted : n_leaves, kLargestCluster);
  while (n >= least && n_resident(static_cast<int>(n)) < at_once) --n;
  if (n < least) return 0;
  const std::int64_t here = device().n_multiprocessors;
  const bool leaves_idle = 10 * n * n_query_tiles < 9 * std::min(here, n_leaves * n_query_tiles);
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
