// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A ring of stages that a warp of its own fills with bulk copies, one lane of it for every team (cp.async.bulk).
///
/// A team has stages of eight keys and eight values, and every stage two mbarriers. "Full" ends a phase when all bytes of the
/// stage are there, "empty" when the team has read them. Round n of a stage waits for the phase n of "full", and its filling
/// for the phase n - 1 of "empty"; the parity of a phase is all that a wait has to know.
#pragma once

#include "gpu/parts/climb.cuh"
#include "gpu/parts/splits.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// How a block is laid out. Its last warp, the producer, comes on top of the threads of the teams.
template <IsSubWarp Team>
struct BulkShape {
  static constexpr int kStages = 3;
  static constexpr int kTeamThreads = kSplitThreads / Team::kChunks;  ///< wider rows take more of the ring, so fewer threads
  static constexpr int kThreads = kTeamThreads + kWarp;
  static constexpr int kTeams = kTeamThreads / Team::kLanes;
  static_assert(kTeams <= kWarp, "a lane of the producer serves one team");

  /// Floats of a row, of a stage (keys, then values), and of the ring.
  static constexpr int kRow = Team::kLanes * Team::kChunks * 4;
  static constexpr int kStage = 2 * kTogether * kRow;
  static constexpr int kRing = kTeams * kStages * kStage;
  /// Barriers: a full and an empty one a stage.
  static constexpr int kBarriers = kTeams * kStages * 2;
  static constexpr std::size_t kBytes = kRing * sizeof(float) + (kBarriers * sizeof(Barrier) + 127) / 128 * 128;
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/// Eight rows in shared memory: what a lane reads of them.
template <IsSubWarp Team>
struct SharedRows {
  Shared<float> first;  ///< the lane's first chunk of row 0
  int d, lane;
  unsigned there;  ///< bit i: row i has been copied; what a row that is not there left behind is not looked at

  __device__ __forceinline__ Bytes16 operator()(int i, int chunk) const {
    if ((there >> i & 1) == 0 || bytes_of_chunk<Team>(d, lane, chunk) == 0) return Bytes16{};
    return load16(first + (i * BulkShape<Team>::kRow + chunk * Team::kLanes * 4));
  }
};

/// The ring of one team, as the lane that fills it and the lanes that read it see it. It lasts as long as the kernel: stages
/// and phases go on from run to run.
template <IsSubWarp Team>
class BulkRing {
 public:
  using Shape = BulkShape<Team>;

  /// Readies the barriers. All threads of the block call it: lane t of the last warp serves team t.
  /// @param memory [kTeams][kStages][2][kTogether][kRow] @param barriers [kTeams][kStages][2]
  __device__ __forceinline__ BulkRing(Shared<float> memory, Shared<Barrier> barriers)
      : fills_(static_cast<int>(threadIdx.x) >= Shape::kTeamThreads),
        team_(fills_ ? static_cast<int>(threadIdx.x) - Shape::kTeamThreads : static_cast<int>(threadIdx.x) / Team::kLanes),
        parity_(fills_ ? 1 : 0),  // The phase before the first has ended: nobody waits to fill in the first round.
        memory_(memory + team_ * Shape::kStages * Shape::kStage),
        barriers_(barriers + team_ * Shape::kStages * 2) {
    if (fills_ && team_ < Shape::kTeams) {
      for (int i = 0; i < Shape::kStages * 2; ++i) barrier_init(barriers_ + i, 1);
      barrier_fence_init();
    }
    __syncthreads();
  }

  /// The walk of all teams of a block over the positions `run`: the last warp fills, the others climb. All threads call it;
  /// behind it and a barrier of the block the forests of the teams are there, and the ring's memory is free until the next.
  /// @param forests of the teams, n_forest floats each
  __device__ __forceinline__ void climb(const DeviceProblem& problem, std::int64_t line, std::int64_t r, Run run, float* forests,
                                        std::int64_t n_forest) {
    const Run own = part_of(run, team_, Shape::kTeams);
    if (!fills_) return climb(problem, line, r, own, forests + team_ * n_forest);
    if (team_ < Shape::kTeams) fill(problem, line, own);
  }

 private:
  /// The producer's side, by one lane: copies the rows of a run, group by group, as stages become free. A group without keys
  /// copies nothing and still counts.
  /// @param run positions of the team
  __device__ __forceinline__ void fill(const DeviceProblem& problem, std::int64_t line, Run run) {
    using T = typename Team::T;
    const std::int64_t used_end = problem.in_use(line).end, end = run.end < used_end ? run.end : used_end;
    // An empty run may start inside a group, which has no stage.
    for (std::int64_t group = run.begin / kTogether * kTogether; !run.empty() && group < run.end; group += kTogether) {
      barrier_wait(empty(stage_), parity_);

      // Rows [first, last) of the group are there.
      const int first = group < run.begin ? static_cast<int>(run.begin - group) : 0;
      const int last = group + kTogether < end ? kTogether : end > group ? static_cast<int>(end - group) : 0;
      const int n = last > first ? last - first : 0;
      const int key_bytes = problem.d_h * static_cast<int>(sizeof(T)), value_bytes = problem.d_v * static_cast<int>(sizeof(T));
      barrier_arrive_expect(full(stage_), n * (key_bytes + value_bytes));
      if (n > 0) {
        copy_rows(rows(stage_, 0) + first * Shape::kRow, problem.key<T>(line, group + first), problem.k.stride[2], key_bytes, n,
                  full(stage_));
        copy_rows(rows(stage_, 1) + first * Shape::kRow, problem.value<T>(line, group + first), problem.v.stride[2], value_bytes, n,
                  full(stage_));
      }
      next();
    }
  }

  /// The team's side: waits for a stage, takes it, and one lane says, behind the others, that it has been read.
  __device__ __forceinline__ void climb(const DeviceProblem& problem, std::int64_t line, std::int64_t r, Run run, float* forest) {
    Climb<Team> climb(problem, line, r, run, forest);
    const int lane = climb.lane(), n_groups = climb.groups().n_groups(), n_steps = climb.n_steps();
    for (int group = 0; group < n_steps; ++group) {
      const bool has_stage = group < n_groups;
      if (has_stage) barrier_wait(full(stage_), parity_);
      const unsigned there = climb.groups().there(group);
      climb.take(group, SharedRows<Team>{rows(stage_, 0) + lane * 4, problem.d_h, lane, there},
                 SharedRows<Team>{rows(stage_, 1) + lane * 4, problem.d_v, lane, there});
      __syncwarp();
      if (!has_stage) continue;
      if (lane == 0) barrier_arrive(empty(stage_));
      next();
    }
  }

  /// Keys (0) or values (1) of a stage, and its barriers.
  __device__ __forceinline__ Shared<float> rows(int stage, int which) const {
    return memory_ + (stage * Shape::kStage + which * kTogether * Shape::kRow);
  }
  __device__ __forceinline__ Shared<Barrier> full(int stage) const { return barriers_ + 2 * stage; }
  __device__ __forceinline__ Shared<Barrier> empty(int stage) const { return barriers_ + (2 * stage + 1); }
  __device__ __forceinline__ void next() {
    if (++stage_ == Shape::kStages) stage_ = 0, parity_ ^= 1;
  }

  /// n rows: in one piece if they are neighbours on both sides, else row by row.
  template <class T>
  __device__ __forceinline__ static void copy_rows(Shared<float> to, const T* from, std::int64_t stride, int row_bytes, int n,
                                                   Shared<Barrier> full) {
    const bool whole = row_bytes == Shape::kRow * 4 && stride * static_cast<int>(sizeof(T)) == row_bytes;
    const int n_pieces = whole ? 1 : n, n_bytes = whole ? n * row_bytes : row_bytes;
    for (int i = 0; i < n_pieces; ++i) bulk_copy(to + i * Shape::kRow, from + i * stride, n_bytes, full);
  }

  bool fills_;
  int team_, stage_ = 0, parity_;
  Shared<float> memory_;
  Shared<Barrier> barriers_;
};

#endif

}  // namespace tree_attn::TREE_ATTN_PLATFORM
