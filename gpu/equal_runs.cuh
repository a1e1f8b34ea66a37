// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The library kernel: equal runs of work over all blocks, any worker, one launch (section 5, Alg. 3).
#pragma once

#include "gpu/forests.cuh"
#include "gpu/last_block.cuh"
#include "gpu/schedule.hpp"
#include "gpu/splits.hpp"
#include "gpu/workers.hpp"

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

/// The library kernel. @param counters one a strip
/// @paper{alg_3, Alg. 3}
template <class Worker>
__global__ void __launch_bounds__(Walk<Worker>::kThreads, 1)
    equal_runs(DeviceProblem problem, DeviceOutput output, bool aligned, EqualRunsWorkspace forests, unsigned* counters) {
  const int n_workers = forests.n_workers, worker = static_cast<int>(threadIdx.x) / Worker::kLanes;
  const int lane = static_cast<int>(threadIdx.x) % Worker::kLanes;
  const std::int64_t block = blockIdx.x;
  Arena arena;
  const Shared<int> told = arena.take<int>(1);
  const Shared<Bytes16> memory = arena.take<Bytes16>(Walk<Worker>::kPieces);
  const Scratch scratch{shared_as<float>(memory), static_cast<int>(Walk<Worker>::kPieces) * 4};

  const Schedule schedule(problem, Worker::kRows, gridDim.x);
  const std::int64_t end = schedule.begin_of(block + 1);
  for (std::int64_t cell = schedule.begin_of(block); cell < end;) {
    const Segment segment = schedule.segment_at(cell, end);
    const std::int64_t strip_end = segment.cell + segment.n_cells;
    const auto finish = [&](int slot, const auto& forest) {
      deliver<Worker>(problem, output, segment.line, segment.first_row, slot, forest, segment.whole, lane);
    };

    // Every worker walks over its part of the segment; the block joins them.
    Walk<Worker>::walk(problem, segment.line, segment.first_row, part_of(segment.run, worker, n_workers),
                       forests.of_worker(block, worker), forests.n_worker, aligned, memory);
    __syncthreads();
    const bool is_whole = cell == segment.cell && strip_end <= end;
    float* const kept = forests.of_segment(block, cell > segment.cell);
    join<Worker>(scratch, forests.of_worker(block, 0), forests.n_worker, segment.run, n_workers, lane, worker, n_workers,
                 [&](int slot, const auto& forest) {
                   is_whole ? finish(slot, forest) : keep<Worker>(forest, kept + slot * forests.n_segment, lane);
                 });

    // A strip shared with other blocks is joined by the one that comes last.
    if (!is_whole) {
      const std::int64_t first = schedule.block_of(segment.cell), last = schedule.block_of(strip_end - 1);
      const int n_parts = static_cast<int>(last - first) + 1;
      if (arrives_last(counters + segment.strip, static_cast<unsigned>(n_parts), told)) {
        const auto part = [&schedule, &segment, forests, first](int i) {
          const std::int64_t from = schedule.begin_of(first + i), to = schedule.begin_of(first + i + 1);
          const bool began_before = from > segment.cell;
          return Part{schedule.positions(segment, began_before ? from : segment.cell, to),
                      forests.of_segment(first + i, began_before)};
        };
        join_parts<Worker>(scratch, forests.n_segment, segment.whole.begin, n_parts, part, lane, worker, n_workers, finish);
      }
    }
    // The next segment uses the workers' forests and the ring again.
    __syncthreads();
    cell = strip_end < end ? strip_end : end;
  }
}

/// What a launch of one kind of worker needs, on the host.
template <class Worker>
EqualRunsWorkspace equal_runs_workspace(const DeviceProblem& problem, std::int64_t n_blocks, float* floats) {
  const std::int64_t n_pieces = std::max<std::int64_t>(1, (problem.end + kCut - 1) / kCut - problem.begin / kCut);
  const std::int64_t a_block = std::min(n_pieces, (n_strips<Worker>(problem) * n_pieces + n_blocks - 1) / n_blocks);
  const int n_workers = n_workers_of<Worker>(Walk<Worker>::kThreads);
  using Forest = ForestOf<Worker>;
  return {floats, Forest::n_floats((a_block + n_workers - 1) / n_workers * kCut), Forest::n_floats(a_block * kCut), n_workers,
          Worker::kSlots};
}

/// Plans, or launches, for every shape of one stored type: the three types are compiled in files of their own.
template <class T>
Plan plan_equal_runs(const DeviceProblem& problem, const PlanOptions& options);
template <class T>
void run_equal_runs(const DeviceProblem& problem, const DeviceOutput& output, const Plan& plan, const Workspace& workspace,
                    Stream stream);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
