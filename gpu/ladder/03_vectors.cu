// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Rung 3 of the ladder: 16 bytes per lane, eight keys at a time, and 64 keys are one leaf (section 5).
///
/// What changed: a lane reads 16 bytes at once, and eight rows are requested before the first is used. Eight keys are added
/// to the sums of their leaf of 64, one chain of fused multiply-adds under a shift that rises with the scores; leaves merge
/// along the canonical tree. So no bit depends on where keys are cut between leaves; rung 5 has the same bits.
/// Floor: that of rung 2: 67 MB, 14.4 us for 16 heads of 64, 8k keys, F32 on an H200. Prediction: 2 us for eight keys and
/// their values where rung 2 takes 7.5: 2 ms. There are no more warps than queries. Measured with rows of 128: 2.06 ms.
#include "gpu/ladder/ladder.hpp"
#include "gpu/platform/device.hpp"
#include "reference/state/state.hpp"

#include <algorithm>
#include <bit>

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

constexpr int kWarp = 32, kKeys = 8;  // lanes; neighbouring keys that a warp adds at once

/// A query as a warp knows it. Of every row a lane has the vectors lane, lane + 32, .. of 16 bytes.
template <StoredType T, int kVectors>
struct Query {
  static constexpr int kOf = kPer16<T>, kElements = kVectors * kOf;  ///< elements of a vector, and of a lane
  static constexpr int kAtOnce = kVectors == 1 ? kKeys : 1;          ///< rows that are requested together

  const DecodeParams& params;
  std::int64_t kv_head;
  KeyRange used = params.in_use(kv_head);
  float q[kElements] = {};

  /// The component of a row that element c of this lane is.
  __device__ static int component(int c) { return (c / kOf * kWarp + static_cast<int>(threadIdx.x)) * kOf + c % kOf; }
  __device__ bool has_key(std::int64_t position) const { return position >= used.begin && position < used.end; }

  /// This lane's part of kAtOnce rows of d elements; zeros past a row, and where there is no key.
  __device__ void load(const DeviceView& view, int d, std::int64_t position, float (&to)[kAtOnce][kVectors][kOf]) const {
    const T* const row = view.row<T>(params.entry_of(kv_head), params.head_of(kv_head), position - params.begin);
    for (int i = 0; i < kAtOnce * kVectors; ++i) {
      const int key = i / kVectors, first = component(i % kVectors * kOf);
      const bool is_there = first < d && has_key(position + key);
      widen<T>(is_there ? load16_global(row + key * view.stride[2] + first) : Bytes16{}, to[key][i % kVectors]);
    }
  }

  /// Adds eight neighbouring keys to the state of their leaf: e' = max(e, e_1 .. e_8), and with f = 2^(e - e')
  ///
  ///     D' = f D + sum_a w_a,    n' = w_8 v_8 + ( .. + (w_1 v_1 + f n)),    w_a = 2^(s_a - e').
  ///
  /// A key with a score of -inf adds nothing, whatever its value; a score of +inf or NaN makes D and n NaN.
  /// @paper{eq_7, eq. (7)}
  __device__ void add_eight_keys(std::int64_t position, float* leaf) const {
    float rows[kAtOnce][kVectors][kOf], s[kKeys] = {}, w[kKeys], shift = -INFINITY;

    // Scores: a lane adds its products, then lanes whose numbers differ in bit 0, 1, .. 4 add their sums.
    for (int i = 0; i < kKeys; ++i) {
      if (i % kAtOnce == 0) load(params.k, params.d_h, position + i, rows);
      for (int c = 0; c < kElements; ++c) s[i] = fused_multiply_add(q[c], rows[i % kAtOnce][c / kOf][c % kOf], s[i]);
      for (int distance = 1; distance < kWarp; distance *= 2) s[i] += __shfl_xor_sync(0xFFFFFFFF, s[i], distance);
      s[i] = has_key(position + i) ? params.score_scale * s[i] : -INFINITY;
    }

    // Weights. The shift is an integer: rescaling rounds nothing above the smallest normal number.
    for (const float x : s) shift = std::fmax(shift, key_shift(x));
    const Rescale<float> r = rescale(leaf[kShift], shift);
    const float factor = r.right_is_high ? r.factor : 1.0f;
    for (int i = 0; i < kKeys; ++i) w[i] = s[i] == -INFINITY ? 0.0f : exp2_flushed(s[i] - r.shift);

    // Sums.
    const float sum = ((w[0] + w[1]) + (w[2] + w[3])) + ((w[4] + w[5]) + (w[6] + w[7]));
    leaf[kShift] = r.shift, leaf[kSum] = fused_multiply_add(factor, leaf[kSum], sum);
    float* const n = leaf + kValues;
    for (int c = 0; c < kElements; ++c) n[c] = multiply(factor, n[c]);
    for (int i = 0; i < kKeys; ++i) {
      if (i % kAtOnce == 0) load(params.v, params.d_v, position + i, rows);
      if (s[i] == -INFINITY) continue;
      for (int c = 0; c < kElements; ++c) n[c] = fused_multiply_add(w[i], rows[i % kAtOnce][c / kOf][c % kOf], n[c]);
    }
  }
};

/// The states of the subtrees that cover a range of leaves, left to right, in global memory. Which subtrees these are
/// follows from the ends of the range. A lane has the shift, the sum and some components of every state: an array of
/// kState floats, for merge() of state.hpp. It reads what the same lane has written, so a warp needs no barrier.
template <int kState>
struct Subtrees {
  float* memory;       ///< [subtrees][kState][lanes]
  std::int64_t begin;  ///< of the range
  int size = 0;

  __device__ void load(int i, float* state) const {
    for (int c = 0; c < kState; ++c) state[c] = load_fresh(memory + (i * kState + c) * kWarp + threadIdx.x);
  }
  /// Merges a state with the last subtree, which is on its left: merge() commutes bit for bit.
  __device__ void pop_into(float* state) {
    float left[kState];
    load(--size, left), merge(state, left, kState - kValues);
  }
  /// Appends a subtree, and merges while the last one is a right sibling, as a binary counter carries.
  /// @paper{thm_1, Thm. 1}
  __device__ void push(Subtree subtree, float* state) {
    for (; (subtree.index & 1) != 0 && subtree.parent().begin() >= begin; subtree = subtree.parent()) pop_into(state);
    for (int c = 0; c < kState; ++c) store_fresh(memory + (size * kState + c) * kWarp + threadIdx.x, state[c]);
    ++size;
  }
};

/// A query, leaf after leaf. @param forests of all queries, n_forest floats each
/// @tparam T stored type @tparam kVectors 16-byte vectors of a row that a lane has
/// - Grid: n_rows, a query each.
/// - Block: one warp.
/// - Reads: q, the keys and values in use, and its own forest.
/// - Writes: its own forest in global memory, z [n_rows][d_v] and lse [n_rows].
template <StoredType T, int kVectors>
__global__ void __launch_bounds__(kWarp, 1)
    vectors(DecodeParams params, DeviceOutput output, float* forests, std::int64_t n_forest) {
  using Q = Query<T, kVectors>;
  constexpr int kElements = Q::kElements, kState = kValues + kElements;
  const std::int64_t row = blockIdx.x, kv_head = row / params.group;
  Q query{params, kv_head};
  for (int c = 0; c < kElements; ++c) {
    const T* const x = params.query<T>(kv_head, row % params.group) + Q::component(c);
    if (Q::component(c) < params.d_h) query.q[c] = params.query_scale * widen(load_once(x));
  }

  // Leaf after leaf, and the tree above them.
  const KeyRange whole = params.leaves(kv_head);
  Subtrees<kState> subtrees{forests + row * n_forest, whole.begin};
  float state[kState];
  for (std::int64_t leaf = whole.begin; leaf < whole.end; leaf += kLeafKeys) {
    set_empty(state, kElements);
    for (std::int64_t a = leaf; a < leaf + kLeafKeys && a < query.used.end; a += kKeys) query.add_eight_keys(a, state);
    subtrees.push({kLeafLevel, leaf_at(leaf)}, state);
  }

  // What is left is merged from right to left, and finished.
  set_empty(state, kElements);
  while (subtrees.size > 0) subtrees.pop_into(state);
  if (threadIdx.x == 0) store_fresh(output.lse + row, finish_lse(state));
  for (int c = 0; c < kElements; ++c) {
    float* const z = output.out + row * params.d_v + Q::component(c);
    if (Q::component(c) < params.d_v) store_fresh(z, finish_value(state, state[kValues + c]));
  }
}

/// Vectors of a lane: one, or those of the longest row. @param size bytes of an element
constexpr int n_vectors(int d, int size) { return d * size <= 16 * kWarp ? 1 : (kLongestRow * size + 511) / 512; }

LaunchPlan plan(const DecodeParams& params, DType dtype, const LaunchOptions&) {
  const int size = static_cast<int>(bytes_of(dtype)), d = std::max(params.d_h, params.d_v);
  const std::int64_t n_subtrees = 2 * std::bit_width(static_cast<std::uint64_t>(leaves_of({params.begin, params.end}))),
                     n_forest = n_subtrees * kWarp * (kValues + n_vectors(d, size) * 16 / size);
  return {.n_threads = kWarp, .n_floats = params.n_rows() * n_forest};
}

void run(const DecodeParams& params, DType dtype, const DeviceOutput& output, const LaunchPlan& plan,
         const Workspace& workspace, Stream stream) {
  if (output.out == nullptr) throw DeviceError("vectors: keeps no states, only finished rows");
  with_step_type(dtype, [&]<class T>(T) {
    const bool is_short = n_vectors(std::max(params.d_h, params.d_v), sizeof(T)) == 1;
    launch(is_short ? vectors<T, 1> : vectors<T, n_vectors(kLongestRow, sizeof(T))>,
           {.grid = {unsigned(params.n_rows())}, .block = {kWarp}}, stream, params, output, workspace.floats,
           plan.n_floats / params.n_rows());
  });
}

}  // namespace

const LadderStep kVectors{.name = "vectors",
                          .max_splits = 1,
                          .is_fused = true,
                          .n_additions = leaf_additions,
                          .refusal = accepts_aligned_rows,
                          .plan = plan,
                          .run = run};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
