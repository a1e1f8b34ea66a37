// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A ring of stages that a warp of its own fills with bulk copies, one lane of it for every team (cp.async.bulk).
///
/// A team has stages of eight keys and eight values, and every stage two mbarriers. "Full" ends a phase when all bytes of the
/// stage are there, "empty" when the team has read them. Round n of a stage waits for the phase n of "full", and its filling
/// for the phase n - 1 of "empty"; the parity of a phase is all that a wait has to know.
#pragma once

#include "gpu/climb.cuh"
#include "gpu/splits.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// How a block is laid out. Its last warp, the producer, comes on top of the threads of the teams.
template <class Team>
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
template <class Team>
struct SharedRows {
  Shared<float> first;  ///< the lane's first chunk of row 0
  int d, lane;
  unsigned there;  ///< bit i: row i has been copied; what a row that is not there left behind is not looked at

  __device__ __forceinline__ Bytes16 operator()(int i, int chunk) const {
    if ((there >> i & 1) == 0 || bytes_of_chunk<Team>(d, lane, chunk) == 0) return Bytes16{};
    return load16(first + (i * BulkShape<Team>::kRow + chunk * Team::kLanes * 4));
  }
};

/// The ring of one team, as the lane that fills it and the lanes that read it see it.
template <class Team>
class BulkRing {
 public:
  using Shape = BulkShape<Team>;

  /// @param memory [kTeams][kStages][2][kTogether][kRow] @param barriers [kTeams][kStages][2]
  __device__ __forceinline__ BulkRing(Shared<float> memory, Shared<Barrier> barriers, int team)
      : memory_(memory + team * Shape::kStages * Shape::kStage), barriers_(barriers + team * Shape::kStages * 2) {}

  /// Readies the barriers. One thread a team; then a barrier of the block.
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < Shape::kStages * 2; ++i) barrier_init(barriers_ + i, 1);
    barrier_fence_init();
  }

  /// The producer's side, by one lane: copies the rows of a run, group by group, as stages become free. A group without keys
  /// copies nothing and still counts.
  /// @param run positions of the team
  __device__ __forceinline__ void fill(const DeviceProblem& problem, std::int64_t line, Run64 run) const {
    using T = typename Team::T;
    const std::int64_t used_end = problem.in_use(line).end, end = run.end < used_end ? run.end : used_end;
    int stage = 0, parity = 1;  // The phase before the first has ended: nobody waits in the first round.
    for (std::int64_t group = run.begin / kTogether * kTogether; group < run.end; group += kTogether) {
      barrier_wait(empty(stage), parity);

      // Rows [first, last) of the group are there.
      const int first = group < run.begin ? static_cast<int>(run.begin - group) : 0;
      const int last = group + kTogether < end ? kTogether : end > group ? static_cast<int>(end - group) : 0;
      const int n = last > first ? last - first : 0;
      const int key_bytes = problem.d_h * static_cast<int>(sizeof(T)), value_bytes = problem.d_v * static_cast<int>(sizeof(T));
      barrier_arrive_expect(full(stage), n * (key_bytes + value_bytes));
      if (n > 0) {
        copy_rows(rows(stage, 0) + first * Shape::kRow, problem.key<T>(line, group + first), problem.k.stride[2], key_bytes, n,
                  full(stage));
        copy_rows(rows(stage, 1) + first * Shape::kRow, problem.value<T>(line, group + first), problem.v.stride[2], value_bytes, n,
                  full(stage));
      }
      next(stage, parity);
    }
  }

  /// The team's side: waits for a stage, and says that it has been read. The latter by one lane, behind the others.
  __device__ __forceinline__ void wait(int stage, int parity) const { barrier_wait(full(stage), parity); }
  __device__ __forceinline__ void release(int stage) const { barrier_arrive(empty(stage)); }
  /// Keys (0) or values (1) of a stage.
  __device__ __forceinline__ Shared<float> rows(int stage, int which) const {
    return memory_ + (stage * Shape::kStage + which * kTogether * Shape::kRow);
  }
  __device__ __forceinline__ static void next(int& stage, int& parity) {
    if (++stage == Shape::kStages) stage = 0, parity ^= 1;
  }

 private:
  __device__ __forceinline__ Shared<Barrier> full(int stage) const { return barriers_ + 2 * stage; }
  __device__ __forceinline__ Shared<Barrier> empty(int stage) const { return barriers_ + (2 * stage + 1); }

  /// n rows: in one piece if they are neighbours on both sides, else row by row.
  template <class T>
  __device__ __forceinline__ static void copy_rows(Shared<float> to, const T* from, std::int64_t stride, int row_bytes, int n,
                                                   Shared<Barrier> full) {
    const bool whole = row_bytes == Shape::kRow * 4 && stride * static_cast<int>(sizeof(T)) == row_bytes;
    const int n_pieces = whole ? 1 : n, n_bytes = whole ? n * row_bytes : row_bytes;
    for (int i = 0; i < n_pieces; ++i) bulk_copy(to + i * Shape::kRow, from + i * stride, n_bytes, full);
  }

  Shared<float> memory_;
  Shared<Barrier> barriers_;
};

/// The walk of all teams of a block over the positions `run`: the last warp fills, the others climb. All threads call it;
/// behind it and a barrier of the block the forests of the teams are there, and the ring's memory is free.
/// @param memory [BulkShape::kRing] @param barriers [BulkShape::kBarriers]
/// @param forests of the teams: see SplitWorkspace
template <class Team>
__device__ __forceinline__ void climb_by_bulk(const DeviceProblem& problem, std::int64_t row, int split, Run64 run,
                                              const SplitWorkspace& forests, Shared<float> memory, Shared<Barrier> barriers) {
  using Shape = BulkShape<Team>;
  const std::int64_t line = row / problem.group, r = row % problem.group;
  const int thread = static_cast<int>(threadIdx.x);
  const bool fills = thread >= Shape::kTeamThreads;
  const int team = fills ? thread - Shape::kTeamThreads : thread / Team::kLanes;
  const BulkRing<Team> ring(memory, barriers, team);
  const Run64 mine = part_of(run, team, Shape::kTeams);

  // Lane t of the last warp serves team t.
  if (fills && team < Shape::kTeams) ring.init();
  __syncthreads();
  if (fills) {
    if (team < Shape::kTeams) ring.fill(problem, line, mine);
    return;
  }

  Climb<Team> climb(problem, line, r, mine, forests.of_worker(row, split, team));
  const int lane = climb.lane(), n_groups = climb.groups().n_groups(), n_steps = climb.n_steps();
  int stage = 0, parity = 0;
  for (int group = 0; group < n_steps; ++group) {
    if (group < n_groups) ring.wait(stage, parity);
    const unsigned there = climb.groups().there(group);
    climb.take(group, SharedRows<Team>{ring.rows(stage, 0) + lane * 4, problem.d_h, lane, there},
               SharedRows<Team>{ring.rows(stage, 1) + lane * 4, problem.d_v, lane, there});
    __syncwarp();
    if (group < n_groups && lane == 0) ring.release(stage);
    ring.next(stage, parity);
  }
}

#endif

}  // namespace tree_attn::TREE_ATTN_PLATFORM
