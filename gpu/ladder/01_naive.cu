// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Rung 1 of the ladder: the definition, with all scores in global memory (eq. (5), eq. (7)).
///
/// What it is: two kernels. The first writes every score; the second reads them twice, for the largest and for the weights.
/// Floor: every query reads keys and values for itself, and a score costs 4 bytes to write and 4 (1 + warps per row) to
/// read; BF16, 16 heads of 128, 8k keys: 70 MB, 15.0 us on an H200. Prediction: far above it, because each thread reads a
/// key of its own, 32 rows per warp, and 16 blocks add the values. Measured: 5.21 ms.
#include "gpu/ladder/ladder.hpp"
#include "gpu/platform/device.hpp"
#include "reference/state/state.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

/// s_a = score_scale (query_scale q).k_a, one thread per query and key.
/// @tparam T stored type of q and k
/// - Grid: [blocks of kThreads keys of the range][n_rows].
/// - Block: kThreads threads, a key each.
/// - Reads: q and the keys in use.
/// - Writes: scores [n_rows][end - begin], where a key is in use.
template <StoredType T>
__global__ void naive_scores(DecodeParams params, float* scores) {
  const std::int64_t kv_head = blockIdx.y / params.group, r = blockIdx.y % params.group;
  const std::int64_t position = params.begin + static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (position >= params.in_use(kv_head).end) return;

  const T* const q = params.query<T>(kv_head, r);
  const T* const k = params.key<T>(kv_head, position);
  float dot = 0;
  for (int j = 0; j < params.d_h; ++j) {
    dot = fused_multiply_add(params.query_scale * widen(load_once(q + j)), widen(load_once(k + j)), dot);
  }
  store_fresh(scores + blockIdx.y * (params.end - params.begin) + position - params.begin, params.score_scale * dot);
}

/// e = max ceil(s_a), D = sum 2^(s_a - e), n_j = sum 2^(s_a - e) v_aj.
/// @tparam T stored type of v
/// - Grid: n_rows, a query each.
/// - Block: kThreads threads, a component j each, and again after kThreads; kThreads floats of shared memory.
/// - Reads: the scores of the query, twice, and the values in use.
/// - Writes: z [n_rows][d_v] and lse [n_rows].
template <StoredType T>
__global__ void naive_output(DecodeParams params, DeviceOutput output, const float* scores) {
  const std::int64_t row = blockIdx.x, kv_head = row / params.group;
  const KeyRange used = params.in_use(kv_head);
  const float* const s = scores + row * (params.end - params.begin) - params.begin;
  Arena arena;
  const Shared<float> largest = arena.take<float>(blockDim.x);

  // The shift: every thread takes some of the scores, then the block takes the largest.
  float shift = -std::numeric_limits<float>::infinity();
  for (std::int64_t a = used.begin + threadIdx.x; a < used.end; a += blockDim.x) {
    const float e = key_shift(load_fresh(s + a));
    shift = e > shift ? e : shift;
  }
  largest[threadIdx.x] = shift;
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half && largest[threadIdx.x + half] > largest[threadIdx.x])
      largest[threadIdx.x] = static_cast<float>(largest[threadIdx.x + half]);
  }
  __syncthreads();
  shift = largest[0];

  // The sums, with every key at that shift. A key that is not seen is skipped.
  for (int j = static_cast<int>(threadIdx.x); j < params.d_v; j += static_cast<int>(blockDim.x)) {
    float sum = 0, n = -0.0f;
    for (std::int64_t a = used.begin; a < used.end; ++a) {
      const float score = load_fresh(s + a);
      if (score == -std::numeric_limits<float>::infinity()) continue;
      const float weight = key_weight(score) * rescale(shift, key_shift(score)).factor;
      sum += weight;
      n += multiply(weight, widen(load_once(params.value<T>(kv_head, a) + j)));
    }
    const float e_and_sum[] = {shift, sum};
    store_fresh(output.out + row * params.d_v + j, finish_value(e_and_sum, n));
    if (j == 0) store_fresh(output.lse + row, finish_lse(e_and_sum));
  }
}

constexpr int kThreads = 128;

LaunchPlan plan(const DecodeParams& params, DType, const LaunchOptions&) {
  return {.n_splits = 1, .n_threads = kThreads, .n_floats = params.n_rows() * (params.end - params.begin)};
}

void run(const DecodeParams& params, DType dtype, const DeviceOutput& output, const LaunchPlan&, const Workspace& workspace,
         Stream stream) {
  if (output.out == nullptr) throw DeviceError("naive: keeps no states, only finished rows");
  const auto n_rows = static_cast<unsigned>(params.n_rows());
  const auto n_blocks = static_cast<unsigned>((params.end - params.begin + kThreads - 1) / kThreads);
  with_step_type(dtype, [&](auto type) {
    using T = decltype(type);
    if (n_blocks > 0)
      launch(naive_scores<T>, {.grid = {n_blocks, n_rows}, .block = {kThreads}}, stream, params, workspace.floats);
    launch(naive_output<T>,
           {.grid = {n_rows}, .block = {kThreads}, .shared_bytes = kThreads * sizeof(float), .continues = true}, stream,
           params, output, workspace.floats);
  });
}

}  // namespace

const LadderStep kNaive{.name = "naive",
                        .max_splits = 1,
                        .is_canonical = false,
                        .n_additions = chain_additions,
                        .refusal = accepts_any_rows,
                        .plan = plan,
                        .run = run};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
