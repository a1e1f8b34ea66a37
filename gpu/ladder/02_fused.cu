// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Rung 2 of the ladder: scores stay in registers, keys and values are read once in one kernel (section 3, eq.
/// (2)-(3)).
///
/// What changed: one warp per query walks over the keys and merges each into its state: the online softmax. No score is
/// written, and the largest one need not be known beforehand.
/// Floor: keys and values once per query, nothing else; BF16, 16 heads of 128, 8k keys: 67 MB, 14.4 us on an H200.
/// Prediction: far above it. A warp reads 32 neighbouring elements at a time, then waits for them, for the five exchanges of
/// the sum and for the next row: latency is the limit, and there are only 16 warps, fewer than rung 1 has. Fewer bytes are
/// not enough. Measured: 7.65 ms.
#include "gpu/ladder/ladder.hpp"
#include "gpu/platform/device.hpp"
#include "reference/state/state.hpp"

#include <algorithm>

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

constexpr int kWarp = 32;  // lanes

/// state <- merge(state, key) for one key after the other. Lane i has the components i, i + 32, .. of every row; of a state
/// these, the shift and the sum. A chain, not a tree: there are no splits that it has to agree with.
/// @tparam T stored type @tparam kElements components of a row that a lane has: 2, 4 or kLongestRow / 32
/// - Grid: n_rows, a query each.
/// - Block: one warp.
/// - Reads: q, and the keys and values in use, once per query.
/// - Writes: z [n_rows][d_v] and lse [n_rows].
template <StoredType T, int kElements>
__global__ void __launch_bounds__(kWarp) fused(DecodeParams params, DeviceOutput output) {
  const std::int64_t row = blockIdx.x, kv_head = row / params.group, r = row % params.group;
  const int lane = static_cast<int>(threadIdx.x);
  const KeyRange used = params.in_use(kv_head);

  float q[kElements];
  TREE_ATTN_UNROLL
  for (int c = 0; c < kElements; ++c) {
    const int j = lane + kWarp * c;
    q[c] = j < params.d_h ? params.query_scale * widen(load_once(params.query<T>(kv_head, r) + j)) : 0.0f;
  }

  float state[kValues + kElements], key[kValues + kElements];
  set_empty(state, kElements);
  for (std::int64_t a = used.begin; a < used.end; ++a) {
    // The score: each lane multiplies its elements, then all lanes add their sums.
    float dot = 0;
    TREE_ATTN_UNROLL
    for (int c = 0; c < kElements; ++c) {
      const int j = lane + kWarp * c;
      if (j < params.d_h) dot = fused_multiply_add(q[c], widen(load_once(params.key<T>(kv_head, a) + j)), dot);
    }
    TREE_ATTN_UNROLL
    for (int distance = 1; distance < kWarp; distance *= 2) dot += __shfl_xor_sync(0xFFFFFFFF, dot, distance);
    const float s = params.score_scale * dot;

    // The state of the key is merged. A key with a score of -inf is not seen.
    if (s == -std::numeric_limits<float>::infinity()) continue;
    key[kShift] = key_shift(s), key[kSum] = key_weight(s);
    TREE_ATTN_UNROLL
    for (int c = 0; c < kElements; ++c) {
      const int j = lane + kWarp * c;
      key[kValues + c] = j < params.d_v ? multiply(key[kSum], widen(load_once(params.value<T>(kv_head, a) + j))) : 0.0f;
    }
    merge(state, key, kElements);
  }

  // Finish.
  if (lane == 0) store_fresh(output.lse + row, finish_lse(state));
  TREE_ATTN_UNROLL
  for (int c = 0; c < kElements; ++c) {
    const int j = lane + kWarp * c;
    if (j < params.d_v) store_fresh(output.out + row * params.d_v + j, finish_value(state, state[kValues + c]));
  }
}

LaunchPlan plan(const DecodeParams&, DType, const LaunchOptions&) { return {.n_threads = kWarp}; }

void run(const DecodeParams& params, DType dtype, const DeviceOutput& output, const LaunchPlan&, const Workspace&,
         Stream stream) {
  if (output.out == nullptr) throw DeviceError("fused: keeps no states, only finished rows");
  const Launch config{.grid = {static_cast<unsigned>(params.n_rows())}, .block = {kWarp}};
  const int d = std::max(params.d_h, params.d_v);
  with_step_type(dtype, [&](auto type) {
    using T = decltype(type);
    if (d <= 2 * kWarp) return launch(fused<T, 2>, config, stream, params, output);
    if (d <= 4 * kWarp) return launch(fused<T, 4>, config, stream, params, output);
    launch(fused<T, kLongestRow / kWarp>, config, stream, params, output);
  });
}

}  // namespace

const LadderStep kFused{.name = "fused",
                        .max_splits = 1,
                        .is_canonical = false,
                        .n_additions = chain_additions,
                        .refusal = accepts_any_rows,
                        .plan = plan,
                        .run = run};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
