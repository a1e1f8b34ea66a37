// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Step 2 of the ladder: scores stay in registers, keys and values are read once in one kernel (section 3, eq. (2)-(3)).
///
/// What changed: one warp a query walks over the keys and merges each into its state as it comes: the online softmax. No score
/// is written, and the largest one need not be known beforehand.
/// Bytes: keys and values once a query, nothing else. Time: a warp reads a row as 32 neighbouring numbers at a time, and then
/// waits for it, for the five exchanges of the sum and for the next row: latency, not bandwidth, and only n_rows warps.
/// Measured, H200, BF16, 16 heads, 8k keys: 5.7 times as long as step 1. 16 warps that wait for one row after the other are a slower
/// machine than 132 multiprocessors with scores to write: fewer bytes are not enough.
#include "gpu/ladder/ladder.hpp"
#include "gpu/parts/lane_state.cuh"
#include "gpu/parts/team.cuh"
#include "gpu/parts/teams.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

/// state <- merge(state, key) for one key after the other; one warp, one query. Lane i has the components
/// i, i + 32, ... A chain, not a tree: it has no splits to agree with.
template <StoredType T, int kNumbers>
__global__ void __launch_bounds__(kWarp) fused(DeviceProblem problem, DeviceOutput output) {
  const std::int64_t row = blockIdx.x, line = row / problem.group, r = row % problem.group;
  const int lane = static_cast<int>(threadIdx.x);
  const Run used = problem.in_use(line);

  float q[kNumbers];
  TREE_ATTN_UNROLL
  for (int c = 0; c < kNumbers; ++c) {
    const int j = lane + kWarp * c;
    q[c] = j < problem.d_h ? problem.query_scale * widen(load_once(problem.query<T>(line, r) + j)) : 0.0f;
  }

  LaneState<kNumbers> state;
  set_empty(state);
  for (std::int64_t a = used.begin; a < used.end; ++a) {
    // The score: each lane multiplies its numbers, then all add up.
    float dot = 0;
    TREE_ATTN_UNROLL
    for (int c = 0; c < kNumbers; ++c) {
      const int j = lane + kWarp * c;
      if (j < problem.d_h) dot = fused_multiply_add(q[c], widen(load_once(problem.key<T>(line, a) + j)), dot);
    }
    TREE_ATTN_UNROLL
    for (int distance = 1; distance < kWarp; distance *= 2) dot += __shfl_xor_sync(kAllLanes, dot, distance);
    const float s = problem.score_scale * dot;

    // The state of the key joins. One with a score of -inf is not seen.
    if (s == -std::numeric_limits<float>::infinity()) continue;
    LaneState<kNumbers> key;
    key.shift = key_shift(s) + problem.lift;
    key.sum = key_weight(s) * pow2(-problem.lift);
    TREE_ATTN_UNROLL
    for (int c = 0; c < kNumbers; ++c) {
      const int j = lane + kWarp * c;
      key.n[c] = j < problem.d_v ? multiply(key.sum, widen(load_once(problem.value<T>(line, a) + j))) : 0.0f;
    }
    merge(state, key);
  }

  // Finish.
  const float e_and_sum[] = {state.shift, state.sum};
  if (lane == 0) output.lse[row] = finish_lse(e_and_sum);
  TREE_ATTN_UNROLL
  for (int c = 0; c < kNumbers; ++c) {
    const int j = lane + kWarp * c;
    if (j < problem.d_v) output.out[row * problem.d_v + j] = finish_value(e_and_sum, state.n[c]);
  }
}

Plan plan(const DeviceProblem&, Storage, const PlanOptions&) { return {.n_threads = kWarp}; }

void run(const DeviceProblem& problem, Storage storage, const DeviceOutput& output, const Plan&, const Workspace&, Stream stream) {
  if (output.out == nullptr) throw DeviceError("fused: keeps no states, only finished rows");
  const Launch how{.grid = {static_cast<unsigned>(problem.n_rows())}, .block = {kWarp}};
  const int d = std::max(problem.d_h, problem.d_v);
  with_type(storage, [&](auto type) {
    using T = decltype(type);
    if (d <= 2 * kWarp) return launch(fused<T, 2>, how, stream, problem, output);
    if (d <= 4 * kWarp) return launch(fused<T, 4>, how, stream, problem, output);
    launch(fused<T, kLongestRow / kWarp>, how, stream, problem, output);
  });
}

}  // namespace

const LadderStep kFused{.name = "fused", .brief = "one warp a query, scores in registers", .max_splits = 1, .keeps_states = false, .n_additions = chain_additions, .accepts = accepts_any_rows, .plan = plan, .run = run};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
