// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The library kernel: equal runs of work over all blocks, any worker, one launch (section 5, Alg. 3).
#pragma once

#include "gpu/parts/forests.cuh"
#include "gpu/parts/last_block.cuh"
#include "gpu/parts/schedule.hpp"
#include "gpu/parts/splits.hpp"
#include "gpu/parts/workers.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Where the forests of a block lie. A block has at most two segments whose strip it shares with others: one that began
/// before it, and one that goes on behind it. Their forests stay until the last of the sharing blocks has joined them.
struct EqualRunsWorkspace {
  float* floats = nullptr;
  std::int64_t n_worker = 0, n_segment = 0;  ///< floats of one forest, of which there is one a slot
  int n_workers = 1, n_slots = 1;

  /// Floats of a block: two segments, and its workers.
  TREE_ATTN_HOST_DEVICE std::int64_t n_floats() const { return (2 * n_segment + n_workers * n_worker) * n_slots; }
  TREE_ATTN_HOST_DEVICE float* of_segment(std::int64_t block, bool began_before) const {
    return floats + block * n_floats() + (began_before ? 0 : n_segment * n_slots);
  }
  TREE_ATTN_HOST_DEVICE float* of_worker(std::int64_t block, int worker) const {
    return floats + block * n_floats() + (2 * n_segment + worker * n_worker) * n_slots;
  }
};

/// Shared memory of the kernel beside that of its walk: three small things, each at a multiple of 128 bytes.
inline constexpr std::size_t kEqualRunsBytes = 3 * 128;

/// The library kernel.
///
/// Thread 0 finds out what the block does next, and tells the others through shared memory: what is known about a segment would
/// fill the registers that the walk needs.
/// @param counters one a strip
/// @paper{alg_3, Alg. 3}
template <IsPipeline Walk>
__global__ void __launch_bounds__(Walk::kThreads, 1)
    equal_runs(DeviceProblem problem, DeviceOutput output, bool aligned, EqualRunsWorkspace forests, unsigned* counters) {
  using Worker = typename Walk::Worker;
  if constexpr (Walk::kIsCompiled) {
    Arena arena;
    const Shared<int> told = arena.take<int>(1);
    const Shared<Schedule> schedule = arena.take<Schedule>(1);
    const Shared<Segment> segment = arena.take<Segment>(1);
    Walk walk(arena);

    // The next cell stands in the segment, and not in registers, and nothing that a round works out is kept for the next.
    if (threadIdx.x == 0) {
      const Schedule all(problem, Worker::kRows, gridDim.x);
      schedule[0] = all;
      Segment none;
      none.last = all.begin_of(blockIdx.x);
      segment[0] = none;
    }
    __syncthreads();
    while (Segment(segment[0]).last < Schedule(schedule[0]).begin_of(blockIdx.x + 1)) {
      const int block = forget(static_cast<int>(blockIdx.x)), thread = forget(static_cast<int>(threadIdx.x));
      const auto self = WorkerThread::of<Worker>(thread, Walk::kThreads);
      __syncthreads();
      if (thread == 0) {
        const Schedule all = schedule[0];
        segment[0] = all.segment_at(problem, Segment(segment[0]).last, all.begin_of(block + 1));
      }
      __syncthreads();
      const auto finish = [&](int slot, const auto& forest) {
        const Segment at = segment[0];
        deliver<Worker>(problem, output, at.line, at.first_row, slot, forest, at.whole, self.lane);
      };

      // Every worker walks over its part of the segment; the block joins them.
      {
        const Segment at = segment[0];
        walk(problem, at.line, at.first_row, at.run, forests.of_worker(block, 0), forests.n_worker, aligned);
      }
      __syncthreads();
      const Segment at = segment[0];
      float* const kept = forests.of_segment(block, at.first > at.cell);
      join<Worker>(walk.scratch(), forests.of_worker(block, 0), forests.n_worker, at.run, Walk::kWorkers, self,
                   [&](int slot, const auto& forest) {
                     at.is_whole() ? finish(slot, forest) : keep<Worker>(forest, kept + slot * forests.n_segment, self.lane);
                   });

      // A strip shared with other blocks is joined by the one that comes last.
      if (!at.is_whole()) {
        const Schedule all = schedule[0];
        const std::int64_t first = all.block_of(at.cell);
        const int n_parts = static_cast<int>(all.block_of(at.cell + at.n_cells - 1) - first) + 1;
        if (arrives_last(counters + at.strip, static_cast<unsigned>(n_parts), told)) {
          const auto part = [&all, &at, &forests, first](int i) {
            const std::int64_t from = all.begin_of(first + i), to = all.begin_of(first + i + 1);
            const bool began_before = from > at.cell;
            return Part{at.positions(began_before ? from : at.cell, to), forests.of_segment(first + i, began_before)};
          };
          join_parts<Worker>(walk.scratch(), forests.n_segment, at.whole.begin, n_parts, part, self, finish);
        }
      }
      // The next segment uses all this memory again.
      __syncthreads();
    }
  }
}

/// What a launch needs, on the host.
template <IsPipeline Walk>
EqualRunsWorkspace equal_runs_workspace(const DeviceProblem& problem, std::int64_t n_blocks, float* floats) {
  using Worker = typename Walk::Worker;
  const std::int64_t n_pieces = std::max<std::int64_t>(1, (problem.end + kLeafKeys - 1) / kLeafKeys - problem.begin / kLeafKeys);
  const std::int64_t a_block = std::min(n_pieces, (n_strips<Worker>(problem) * n_pieces + n_blocks - 1) / n_blocks);
  using Forest = ForestOf<Worker>;
  return {floats, Forest::n_floats((a_block + Walk::kWorkers - 1) / Walk::kWorkers * kLeafKeys), Forest::n_floats(a_block * kLeafKeys),
          Walk::kWorkers, Worker::kSlots};
}

/// Plans, or launches, for every shape of one stored type: the three types are compiled in files of their own.
template <class T>
Plan plan_equal_runs(const DeviceProblem& problem, const PlanOptions& options);
template <class T>
void run_equal_runs(const DeviceProblem& problem, const DeviceOutput& output, const Plan& plan, const Workspace& workspace,
                    Stream stream);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
