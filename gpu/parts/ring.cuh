// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A ring of copies in flight that needs no barrier: every lane copies what it will read itself (cp.async).
///
/// Shared memory stands in for registers that arrive late. A lane's chunk of a row is of interest to no other lane, so a wait
/// for the lane's own copies is all the order there is to keep.
#pragma once

#include "gpu/parts/climb.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Stages of eight keys and eight values.
template <IsSubWarp Team>
class LaneRing {
 public:
  /// 16-byte pieces of one stage, for one lane: keys, then values.
  static constexpr int kPieces = 2 * kTogether * Team::kChunks;
  static constexpr std::size_t n_bytes(int n_stages, int n_threads) {
    return static_cast<std::size_t>(n_stages) * kPieces * static_cast<std::size_t>(n_threads) * sizeof(Bytes16);
  }

  /// @param memory [n_stages][kPieces][threads]: neighbouring lanes write and read neighbouring 16 bytes
  __device__ __forceinline__ explicit LaneRing(Shared<Bytes16> memory) : memory_(memory + threadIdx.x) {}

  /// Starts to copy eight keys and eight values into a stage.
  /// @param keys, values row 0 of the group in either array
  /// @param there bit i: row i may be read; the others become zero
  /// @param aligned whether rows start at multiples of 16 bytes; else they are copied number by number, at once
  __device__ __forceinline__ void start(const DeviceProblem& problem, const typename Team::T* keys, const typename Team::T* values,
                                        unsigned there, int lane, bool aligned, int stage) {
    start_rows(keys, problem.k.stride[2], problem.d_h, there, lane, aligned, piece(stage, 0, 0, 0));
    start_rows(values, problem.v.stride[2], problem.d_v, there, lane, aligned, piece(stage, 1, 0, 0));
  }
  /// What a stage holds: key, or value, i of the group, and its chunk.
  __device__ __forceinline__ Bytes16 key(int stage, int i, int chunk) const { return load16(piece(stage, 0, i, chunk)); }
  __device__ __forceinline__ Bytes16 value(int stage, int i, int chunk) const { return load16(piece(stage, 1, i, chunk)); }

 private:
  __device__ __forceinline__ Shared<Bytes16> piece(int stage, int which, int i, int chunk) const {
    return memory_ + (((stage * 2 + which) * kTogether + i) * Team::kChunks + chunk) * static_cast<int>(blockDim.x);
  }
  __device__ __forceinline__ void start_rows(const typename Team::T* row, std::int64_t stride, int d, unsigned there, int lane,
                                             bool aligned, Shared<Bytes16> to) {
    using T = typename Team::T;
    row += Team::component(lane, 0);
    TREE_ATTN_UNROLL
    for (int i = 0; i < kTogether; ++i, row += stride) {
      TREE_ATTN_UNROLL
      for (int chunk = 0; chunk < Team::kChunks; ++chunk) {
        const T* const from = row + chunk * Team::kLanes * kPer16<T>;
        const int n_bytes = (there >> i & 1) != 0 ? bytes_of_chunk<Team>(d, lane, chunk) : 0;
        const auto piece = to + (i * Team::kChunks + chunk) * static_cast<int>(blockDim.x);
        if (aligned) copy_async16(piece, from, n_bytes);
        else store16(piece, load_unaligned16(from, n_bytes / static_cast<int>(sizeof(T))));
      }
    }
  }

  Shared<Bytes16> memory_;
};

/// A team's walk with kStages - 1 groups in flight while one is at work.
template <IsSubWarp Team, int kStages>
__device__ __forceinline__ void climb_over_ring(const DeviceProblem& problem, std::int64_t line, std::int64_t r, Run run,
                                                float* memory, bool aligned, LaneRing<Team> ring) {
  using T = typename Team::T;
  Climb<Team> climb(problem, line, r, run, memory);
  const int lane = climb.lane(), n_steps = climb.n_steps();
  const T* keys = problem.key<T>(line, climb.groups().origin());
  const T* values = problem.value<T>(line, climb.groups().origin());
  int ahead = 0;
  const auto start_next = [&](int stage) {
    ring.start(problem, keys, values, climb.groups().there(ahead), lane, aligned, stage);
    copy_async_commit();
    ++ahead;
    keys += kTogether * problem.k.stride[2];
    values += kTogether * problem.v.stride[2];
  };

  // Fill all stages but one. A group without keys copies nothing and still counts.
  for (int stage = 0; stage < kStages - 1; ++stage) start_next(stage);

  // Start the group that is kStages - 1 ahead, wait for this one, take it.
  int stage = 0;
  for (int group = 0; group < n_steps; ++group) {
    start_next(stage == 0 ? kStages - 1 : stage - 1);
    copy_async_wait<kStages - 1>();
    climb.take(group, [ring, stage](int i, int chunk) { return ring.key(stage, i, chunk); },
               [ring, stage](int i, int chunk) { return ring.value(stage, i, chunk); });
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  copy_async_wait<0>();
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
