// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The library kernel: equal runs of work over all blocks, any worker, one launch (section 5, Alg. 3).
#pragma once

#include "gpu/parts/join.cuh"
#include "gpu/parts/last_block.cuh"
#include "gpu/parts/pipelines.hpp"
#include "gpu/parts/splits.hpp"
#include "gpu/parts/work_partition.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Where the forests of a block lie. A block has at most two work ranges whose query tile it shares with others: one that
/// began before it, and one that goes on behind it. Their forests stay until the last of the sharing blocks has joined them.
struct EqualRunsWorkspace {
  float* floats = nullptr;
  std::int64_t n_worker = 0, n_work_range = 0;  ///< floats of one forest, of which there is one a slot
  int n_workers = 1, n_slots = 1;

  /// Floats of a block: two work ranges, and its workers.
  TREE_ATTN_HOST_DEVICE std::int64_t n_floats() const { return (2 * n_work_range + n_workers * n_worker) * n_slots; }
  TREE_ATTN_HOST_DEVICE float* of_work_range(std::int64_t block, bool began_before) const {
    return floats + block * n_floats() + (began_before ? 0 : n_work_range * n_slots);
  }
  TREE_ATTN_HOST_DEVICE float* of_worker(std::int64_t block, int worker) const {
    return floats + block * n_floats() + (2 * n_work_range + worker * n_worker) * n_slots;
  }
};

/// Shared memory of the kernel beside that of its pipeline: three small things, each at a multiple of 128 bytes.
inline constexpr std::size_t kEqualRunsBytes = 3 * 128;

/// The library kernel.
///
/// Thread 0 finds out what the block does next, and tells the others through shared memory: what is known about a work range
/// would fill the registers that the pipeline needs.
/// @param counters one a query tile
/// @paper{alg_3, Alg. 3}
template <IsPipeline Pipeline>
__global__ void __launch_bounds__(Pipeline::kThreads, 1)
    equal_runs(DecodeParams params, DeviceOutput output, bool aligned, EqualRunsWorkspace forests, unsigned* counters) {
  using Worker = typename Pipeline::Worker;
  if constexpr (Pipeline::kIsCompiled) {
    Arena arena;
    const Shared<int> is_last = arena.take<int>(1);
    const Shared<WorkPartition> partition = arena.take<WorkPartition>(1);
    const Shared<WorkRange> work_range = arena.take<WorkRange>(1);
    Pipeline pipeline(arena);

    // The next work item stands in the work range, and not in registers, and nothing that a round works out is kept for the
    // next.
    if (threadIdx.x == 0) {
      const WorkPartition all(params, Worker::kRows, gridDim.x);
      partition[0] = all;
      WorkRange none;
      none.last = all.begin_of(blockIdx.x);
      work_range[0] = none;
    }
    __syncthreads();
    while (WorkRange(work_range[0]).last < WorkPartition(partition[0]).begin_of(blockIdx.x + 1)) {
      const int block = opaque(static_cast<int>(blockIdx.x)), thread = opaque(static_cast<int>(threadIdx.x));
      const auto self = WorkerThread::of<Worker>(thread, Pipeline::kThreads);
      __syncthreads();
      if (thread == 0) {
        const WorkPartition all = partition[0];
        work_range[0] = all.work_range_at(params, WorkRange(work_range[0]).last, all.begin_of(block + 1));
      }
      __syncthreads();
      const auto finish = [&](int slot, const auto& forest) {
        const WorkRange work = work_range[0];
        write_output<Worker>(params, output, work.kv_head, work.first_row, slot, forest, work.whole, self.lane);
      };

      // Every worker walks over its part of the work range; the block joins them.
      {
        const WorkRange work = work_range[0];
        pipeline(params, work.kv_head, work.first_row, work.positions, forests.of_worker(block, 0), forests.n_worker,
                 aligned);
      }
      __syncthreads();
      const WorkRange work = work_range[0];
      float* const kept = forests.of_work_range(block, work.first > work.tile_begin);
      join_splits<Worker>(pipeline.scratch(), forests.of_worker(block, 0), forests.n_worker, work.positions,
                          Pipeline::kWorkers, self, [&](int slot, const auto& forest) {
                            work.is_whole() ? finish(slot, forest)
                                            : store_forest<Worker>(forest, kept + slot * forests.n_work_range, self.lane);
                          });

      // A query tile shared with other blocks is joined by the one that comes last.
      if (!work.is_whole()) {
        const WorkPartition all = partition[0];
        const std::int64_t first = all.block_of(work.tile_begin);
        const int n_parts = static_cast<int>(all.block_of(work.tile_begin + work.n_tile_items - 1) - first) + 1;
        if (arrives_last(counters + work.query_tile, static_cast<unsigned>(n_parts), is_last)) {
          const auto part = [&all, &work, &forests, first](int i) {
            const std::int64_t from = all.begin_of(first + i), to = all.begin_of(first + i + 1);
            const bool began_before = from > work.tile_begin;
            return Part{work.positions_of(began_before ? from : work.tile_begin, to),
                        forests.of_work_range(first + i, began_before)};
          };
          join_parts<Worker>(pipeline.scratch(), forests.n_work_range, work.whole.begin, n_parts, part, self, finish);
        }
      }
      // The next work range uses all this memory again.
      __syncthreads();
    }
  }
}

/// What a launch needs, on the host.
template <IsPipeline Pipeline>
EqualRunsWorkspace equal_runs_workspace(const DecodeParams& params, std::int64_t n_blocks, float* floats) {
  using Worker = typename Pipeline::Worker;
  const std::int64_t n_leaves =
      std::max<std::int64_t>(1, (params.end + kLeafKeys - 1) / kLeafKeys - params.begin / kLeafKeys);
  const std::int64_t a_block = std::min(n_leaves, (n_query_tiles<Worker>(params) * n_leaves + n_blocks - 1) / n_blocks);
  using Forest = WorkerForest<Worker>;
  return {floats, Forest::n_floats((a_block + Pipeline::kWorkers - 1) / Pipeline::kWorkers * kLeafKeys),
          Forest::n_floats(a_block * kLeafKeys), Pipeline::kWorkers, Worker::kSlots};
}

/// Plans, or launches, for every shape of one stored type: the three types are compiled in files of their own.
template <class T>
LaunchPlan plan_equal_runs(const DecodeParams& params, const LaunchOptions& options);
template <class T>
void run_equal_runs(const DecodeParams& params, const DeviceOutput& output, const LaunchPlan& plan,
                    const Workspace& workspace, Stream stream);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
