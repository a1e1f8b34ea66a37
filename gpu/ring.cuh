// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A ring of copies in flight that needs no barrier: every lane copies what it will read itself (cp.async).
///
/// Shared memory stands in for registers that arrive late. A lane's chunk of a row is of interest to no other lane, so a wait
/// for the lane's own copies is all the order there is to keep.
#pragma once

#include "gpu/climb.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Stages of eight keys and eight values.
template <class Team>
class LaneRing {
 public:
  /// 16-byte pieces of one stage, for one lane: keys, then values.
  static constexpr int kPieces = 2 * kTogether * Team::kChunks;
  static constexpr std::size_t n_bytes(int n_stages, int n_threads) {
    return static_cast<std::size_t>(n_stages) * kPieces * static_cast<std::size_t>(n_threads) * sizeof(Bytes16);
  }

  /// @param memory [n_stages][kPieces][threads]: neighbouring lanes write and read neighbouring 16 bytes
  __device__ __forceinline__ explicit LaneRing(Shared<Bytes16> memory) : memory_(memory + threadIdx.x) {}

  /// Starts to copy the rows of a group into a stage. An array that is not aligned is copied number by number, at once.
  __device__ __forceinline__ void start(const DeviceProblem& problem, std::int64_t line, std::int64_t group, unsigned there, int lane,
                                        bool aligned, int stage) {
    using T = typename Team::T;
    start_rows(problem.key<T>(line, group * kTogether), problem.k.stride[2], problem.d_h, there, lane, aligned, stage, 0);
    start_rows(problem.value<T>(line, group * kTogether), problem.v.stride[2], problem.d_v, there, lane, aligned, stage, 1);
  }
  /// What a stage holds: key, or value, i of the group, and its chunk.
  __device__ __forceinline__ Bytes16 key(int stage, int i, int chunk) const { return load16(piece(stage, 0, i, chunk)); }
  __device__ __forceinline__ Bytes16 value(int stage, int i, int chunk) const { return load16(piece(stage, 1, i, chunk)); }

 private:
  __device__ __forceinline__ Shared<Bytes16> piece(int stage, int which, int i, int chunk) const {
    return memory_ + ((stage * 2 + which) * kTogether + i) * Team::kChunks * static_cast<int>(blockDim.x) +
           chunk * static_cast<int>(blockDim.x);
  }
  __device__ __forceinline__ void start_rows(const typename Team::T* first, std::int64_t stride, int d, unsigned there, int lane,
                                             bool aligned, int stage, int which) {
    using T = typename Team::T;
    TREE_ATTN_UNROLL
    for (int i = 0; i < kTogether; ++i) {
      TREE_ATTN_UNROLL
      for (int chunk = 0; chunk < Team::kChunks; ++chunk) {
        const T* const from = first + i * stride + Team::component(lane, chunk * kPer16<T>);
        const int n_bytes = (there >> i & 1) != 0 ? bytes_of_chunk<Team>(d, lane, chunk) : 0;
        if (aligned) {
          copy_async16(piece(stage, which, i, chunk), from, n_bytes);
        } else {
          T numbers[kPer16<T>] = {};
          for (int c = 0; c < n_bytes / static_cast<int>(sizeof(T)); ++c) numbers[c] = load_once(from + c);
          Bytes16 bytes;
          std::memcpy(&bytes, numbers, sizeof bytes);
          store16(piece(stage, which, i, chunk), bytes);
        }
      }
    }
  }

  Shared<Bytes16> memory_;
};

/// A team's walk with kStages - 1 groups in flight while one is at work.
template <class Team, int kStages>
__device__ __forceinline__ void climb_over_ring(const DeviceProblem& problem, std::int64_t line, std::int64_t r, Run64 run,
                                                float* memory, bool aligned, LaneRing<Team> ring) {
  Climb<Team> climb(problem, line, r, run, memory);
  const int lane = climb.lane();
  const std::int64_t first = climb.first_group(), end = first + climb.n_steps();

  // Fill all stages but one. A group without keys copies nothing and still counts.
  for (int stage = 0; stage < kStages - 1; ++stage) {
    ring.start(problem, line, first + stage, climb.there(first + stage), lane, aligned, stage);
    copy_async_commit();
  }

  // Start the group that is kStages - 1 ahead, wait for this one, take it.
  int stage = 0;
  for (std::int64_t group = first; group < end; ++group) {
    const std::int64_t ahead = group + kStages - 1;
    ring.start(problem, line, ahead, climb.there(ahead), lane, aligned, (stage + kStages - 1) % kStages);
    copy_async_commit();
    copy_async_wait<kStages - 1>();
    climb.take(group, [ring, stage](int i, int chunk) { return ring.key(stage, i, chunk); },
               [ring, stage](int i, int chunk) { return ring.value(stage, i, chunk); });
    stage = (stage + 1) % kStages;
  }
  copy_async_wait<0>();
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
