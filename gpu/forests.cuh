// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The end of every kernel: forests of neighbouring runs become one, and that becomes the result (Alg. 3).
#pragma once

#include "gpu/team.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// The forest of one slot of a worker.
template <class Worker>
using ForestOf = Counter<Worker::kNumbers, Worker::kLanes>;

/// Joins the forests of the n parts of a run, left to right, by the lanes of one worker.
/// @param into memory of the joined forests, one a slot
/// @param parts memory of the forests of the parts, part by part and in it slot by slot
/// @param n_into, n_part floats of one forest of them
/// @param whole the run, cut by part_of()
template <class Worker>
__device__ __forceinline__ void join(float* into, std::int64_t n_into, float* parts, std::int64_t n_part, Run64 whole, int n_parts,
                                     int lane) {
  for (int slot = 0; slot < Worker::kSlots; ++slot) {
    ForestOf<Worker> joined(into + slot * n_into, lane, whole.begin);
    for (int part = 0; part < n_parts; ++part) {
      const Run64 run = part_of(whole, part, n_parts);
      joined.append({parts + (part * Worker::kSlots + slot) * n_part, lane, run.begin}, run);
    }
  }
}

/// Writes the rows of a worker: z = n / D and lse where the caller wants no states, else one state for every subtree that
/// covers the shard.
/// @param first_row of the worker's rows in the group of the line; those behind the group are padding
/// @param forests one a slot, n_forest floats each
/// @param held positions whose subtrees are in the forests, problem.padded(line); the rest of the shard is the empty set
template <class Worker>
__device__ __forceinline__ void deliver(const DeviceProblem& problem, const DeviceOutput& output, std::int64_t line,
                                        std::int64_t first_row, float* forests, std::int64_t n_forest, Run64 held, int lane) {
  for (int slot = 0; slot < Worker::kSlots; ++slot) {
    const std::int64_t r = first_row + Worker::row(lane, slot), row = line * problem.group + r;
    if (r >= problem.group) continue;
    const ForestOf<Worker> forest(forests + slot * n_forest, lane, held.begin);
    LaneState<Worker::kNumbers> state;

    // The finished row.
    if (output.states == nullptr) {
      forest.fold(held, state);
      const float e_and_sum[] = {state.shift, state.sum};
      if (Worker::component(lane, 0) == 0) output.lse[row] = finish_lse(e_and_sum);
      TREE_ATTN_UNROLL
      for (int c = 0; c < Worker::kNumbers; ++c) {
        const int j = Worker::component(lane, c);
        if (j < problem.d_v) output.out[row * problem.d_v + j] = finish_value(e_and_sum, state.n[c]);
      }
      continue;
    }

    // Or one state a subtree, in the layout of Forest<float>.
    float* to = output.states + row * state_size(problem.d_v);
    for (Run64 shard{problem.begin, problem.end}; !shard.empty(); to += problem.n_rows() * state_size(problem.d_v)) {
      const Subtree subtree = first_subtree(shard.begin, shard.end);
      shard.begin = subtree.end();
      forest.fold({subtree.begin(), subtree.end() < held.end ? subtree.end() : held.end}, state);
      if (Worker::component(lane, 0) == 0) to[kShift] = state.shift, to[kSum] = state.sum;
      TREE_ATTN_UNROLL
      for (int c = 0; c < Worker::kNumbers; ++c) {
        const int j = Worker::component(lane, c);
        if (j < problem.d_v) to[kValues + j] = state.n[c];
      }
    }
  }
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
