// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Step 9 of the ladder: the splits of a row are one cluster and merge through each other's shared memory.
///
/// The paper leaves this open (its future work): blocks of a cluster can read each other's shared memory, which could speed
/// up the reduction inside one device. What changed against step 8: the forest of a split lies in the shared memory of its
/// block, where the ring was; behind a barrier of the cluster the first block reads those of the others where they are. No
/// forest of a split, no counter and no last block in global memory. The merges and their order are the same, so the bits
/// are. Bytes: the same. Time: two fences, an atomic and a chain of loads from L2 become a barrier of the cluster and loads
/// from neighbours, which are published as a third faster; perhaps 1 us at the end of a launch, to be seen with few keys if
/// at all. Against it: a cluster has at most 8 blocks, so one row keeps 8 multiprocessors busy and no more; and those of a
/// cluster must be of one group of 16 or 18, so not every multiprocessor finds a cluster. Measured, H200, BF16, 16 heads:
/// 0.27, 0.40 and 0.45 of the rate of a kernel that only reads, at 8k, 64k and 1M keys, 1.7 to 1.9 times as long as step 8.
/// That is not the merge: perhaps fewer clusters of eight fit on the chip at once than there are.
#include "gpu/ladder/ladder.hpp"
#include "gpu/parts/bulk_ring.cuh"
#include "gpu/parts/join.cuh"

#include <algorithm>

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

/// Blocks of a cluster that every device of compute capability 9 can run.
constexpr int kLargestCluster = 8;

/// Grid: splits, rows; a cluster is all splits of a row.
/// @param forests see SplitWorkspace; only sub-warps have one there
template <IsSubWarp SubWarp>
__global__ void __launch_bounds__(BulkShape<SubWarp>::kThreads, 1)
    cluster(DecodeParams params, DeviceOutput output, SplitWorkspace forests) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using Shape = BulkShape<SubWarp>;
  using InBlock = WorkerForest<SubWarp, InShared>;
  static_assert(kListFloats + 2 * 41 * InBlock::kEntry <= Shape::kRing,
                "a forest of 2^40 positions fits where the ring was");
  const std::int64_t row = blockIdx.y, kv_head = row / params.group, r = row % params.group;
  const int split = cluster_rank(), n_splits = cluster_size();
  const auto self =
      WorkerThread::of<SubWarp>(static_cast<int>(threadIdx.x), Shape::kThreads);  // the producer's lanes among them
  const KeyRange whole = params.padded(kv_head), range = split_range(whole, split, n_splits);
  Arena arena;
  const Shared<Barrier> barriers = arena.take<Barrier>(Shape::kBarriers);
  const Shared<float> memory = arena.take<float>(Shape::kRing);

  // Accumulate, and join the sub-warps of the block, where the ring was.
  BulkRing<SubWarp>(memory, barriers)
      .accumulate(params, kv_head, r, range, forests.of_worker(row, split, 0), forests.n_worker);
  __syncthreads();
  int depth = 0;
  join_splits<SubWarp>({memory, Shape::kRing}, forests.of_worker(row, split, 0), forests.n_worker, range, Shape::kSubWarps,
                       self, [&depth](int, const auto& forest) { depth = forest.depth(); });

  // The first block appends the splits of the others to its own, and hands over the row.
  cluster_sync();
  if (split == 0 && self.worker == 0) {
    InBlock joined(memory + kListFloats, self.lane, range.begin, depth);
    for (int other = 1; other < n_splits; ++other) {
      const KeyRange part = split_range(whole, other, n_splits);
      joined.append(InBlock(remote(memory + kListFloats, other), self.lane, part.begin), part);
    }
    write_output<SubWarp>(params, output, kv_head, r, 0, joined, whole, self.lane);
  }

  // A block that has ended has no shared memory to read.
  cluster_sync();
#endif
}

template <IsSubWarp SubWarp>
SplitWorkspace forests_of(const DecodeParams& params, LaunchPlan plan, float* floats) {
  plan.n_threads = BulkShape<SubWarp>::kSubWarpThreads;  // The producer has no forest.
  SplitWorkspace forests = SplitWorkspace::of<SubWarp>(params, plan, floats);
  forests.n_split = 0;  // Those are in shared memory.
  return forests;
}

/// @throws DeviceError if more splits are asked for than a cluster has blocks
LaunchPlan plan(const DecodeParams& params, DType dtype, const LaunchOptions& options) {
  if (options.n_splits > kLargestCluster) {
    throw DeviceError("cluster: " + std::to_string(options.n_splits) + " splits; a cluster has at most " +
                      std::to_string(kLargestCluster) + " blocks");
  }
  LaunchPlan plan;
  with_sub_warp(params, dtype, [&](auto sub_warp) {
    using SubWarp = decltype(sub_warp);
    using Shape = BulkShape<SubWarp>;
    plan = plan_splits(params, dtype, {options.n_splits, Shape::kSubWarpThreads});
    plan.n_splits = std::min(plan.n_splits, kLargestCluster);
    plan.n_threads = Shape::kThreads;
    plan.n_stages = Shape::kStages;
    plan.n_counters = 0;
    plan.n_floats = params.n_rows() * forests_of<SubWarp>(params, plan, nullptr).n_floats();
    plan.shared_bytes = Shape::kBytes;
  });
  return plan;
}

void run(const DecodeParams& params, DType dtype, const DeviceOutput& output, const LaunchPlan& plan,
         const Workspace& workspace, Stream stream) {
  const Launch config{.grid = {static_cast<unsigned>(plan.n_splits), static_cast<unsigned>(params.n_rows())},
                      .block = {static_cast<unsigned>(plan.n_threads)},
                      .shared_bytes = plan.shared_bytes,
                      .cluster = plan.n_splits};
  with_sub_warp(params, dtype, [&](auto sub_warp) {
    using SubWarp = decltype(sub_warp);
    launch(cluster<SubWarp>, config, stream, params, output, forests_of<SubWarp>(params, plan, workspace.floats));
  });
}

}  // namespace

const LadderStep kCluster{.name = "cluster",
                          .brief = "splits merge through distributed shared memory",
                          .min_capability = 9,
                          .max_splits = kLargestCluster,
                          .n_additions = tree_additions,
                          .accepts = accepts_aligned_rows,
                          .plan = plan,
                          .run = run};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
