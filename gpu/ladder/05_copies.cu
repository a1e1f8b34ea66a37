// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Rung 5 of the ladder: copies in flight, in a ring of stages (section 6.3: decoding waits for memory).
///
/// What changed: eight keys and their values are copied to shared memory three steps before they are used (cp.async). A lane
/// copies what it will read itself, so shared memory serves as registers that are filled in the background, and no barrier
/// is needed. Floor: that of rung 4, 14.4 us for 16 heads of 64, 8k keys, F32 on an H200. Prediction: four warps per
/// multiprocessor have 48 KiB in flight, where 25 to 35 kB are needed: the floor, 2 us until the first copy is there, and
/// the joins of rung 4: 40 us. Measured with rows of 128: 58 us.
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
  static constexpr int kStage = 2 * kKeys * kVectors;    ///< vectors of a stage: those of eight keys, then of their values
  static constexpr int kStages = kVectors == 1 ? 4 : 2;  ///< of which all but one are in flight

  const DecodeParams& params;
  std::int64_t kv_head;
  KeyRange used;         ///< positions of the split that have keys
  Shared<Bytes16> ring;  ///< [kStages][kStage][lanes]
  float q[kElements] = {};

  /// The component of a row that element c of this lane is.
  __device__ static int component(int c) { return (c / kOf * kWarp + static_cast<int>(threadIdx.x)) * kOf + c % kOf; }
  __device__ bool has_key(std::int64_t position) const { return position >= used.begin && position < used.end; }

  /// Starts to copy the rows of eight positions to a stage: zeros past a row, and where there is no key.
  __device__ void start(std::int64_t position, int stage) const {
    copy(params.k, params.d_h, position, ring + stage % kStages * kStage * kWarp);
    copy(params.v, params.d_v, position, ring + (stage % kStages * kStage + kStage / 2) * kWarp);
    copy_async_commit();
  }
  /// The vectors of this lane.
  __device__ void copy(const DeviceView& view, int d, std::int64_t position, Shared<Bytes16> to) const {
    const T* const row = view.row<T>(params.entry_of(kv_head), params.head_of(kv_head), position - params.begin);
    for (int i = 0; i < kKeys * kVectors; ++i) {
      const int key = i / kVectors, first = component(i % kVectors * kOf);
      const bool is_there = first < d && has_key(position + key);
      copy_async16(to + (i * kWarp + static_cast<int>(threadIdx.x)), row + key * view.stride[2] + first, is_there ? 16 : 0);
    }
  }
  /// Row i of a stage: of the keys, or eight rows on of the values.
  __device__ void load(int stage, int i, float (&to)[kVectors][kOf]) const {
    const int first = stage % kStages * kStage + i * kVectors;
    for (int vector = 0; vector < kVectors; ++vector)
      widen<T>(load16(ring + ((first + vector) * kWarp + static_cast<int>(threadIdx.x))), to[vector]);
  }

  /// Adds eight neighbouring keys to the state of their leaf: e' = max(e, e_1 .. e_8), and with f = 2^(e - e')
  ///
  ///     D' = f D + sum_a w_a,    n' = w_8 v_8 + ( .. + (w_1 v_1 + f n)),    w_a = 2^(s_a - e').
  ///
  /// A key with a score of -inf adds nothing, whatever its value; a score of +inf or NaN makes D and n NaN.
  /// @paper{eq_7, eq. (7)}
  __device__ void add_eight_keys(std::int64_t position, int stage, float* leaf) const {
    float row[kVectors][kOf], s[kKeys] = {}, w[kKeys], shift = -INFINITY;

    // Scores: a lane adds its products, then lanes whose numbers differ in bit 0, 1, .. 4 add their sums.
    for (int i = 0; i < kKeys; ++i) {
      load(stage, i, row);
      for (int c = 0; c < kElements; ++c) s[i] = fused_multiply_add(q[c], row[c / kOf][c % kOf], s[i]);
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
      load(stage, kKeys + i, row);
      if (s[i] == -INFINITY) continue;
      for (int c = 0; c < kElements; ++c) n[c] = fused_multiply_add(w[i], row[c / kOf][c % kOf], n[c]);
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

/// A split of a query. @param forests of all splits, n_forest floats each @param counters of queries, 0 before and after
/// @tparam T stored type @tparam kVectors 16-byte vectors of a row that a lane has
/// - Grid: [n_splits][n_rows].
/// - Block: one warp, with Q::kStages stages of shared memory, 8 keys and their values each.
/// - Reads: q, the keys and values of the split; the last warp of a query also the forests of all of its splits.
/// - Writes: its forest; the last warp of a query z [n_rows][d_v] and lse [n_rows].
/// @paper{alg_3, Alg. 3}
template <StoredType T, int kVectors>
__global__ void __launch_bounds__(kWarp, 1)
    decode_copied(DecodeParams params, DeviceOutput output, float* forests, std::int64_t n_forest, unsigned* counters) {
  using Q = Query<T, kVectors>;
  constexpr int kElements = Q::kElements, kState = kValues + kElements;
  const int n_splits = static_cast<int>(gridDim.x);
  const std::int64_t row = blockIdx.y, kv_head = row / params.group;
  const KeyRange whole = params.leaves(kv_head), own = split_range(whole, static_cast<int>(blockIdx.x), n_splits);
  Arena arena;
  KeyRange used = params.in_use(kv_head);
  used.end = used.end < own.end ? used.end : own.end;
  Q query{params, kv_head, used, arena.take<Bytes16>(Q::kStages * Q::kStage * kWarp)};

  // The first copies; then the query.
  for (int step = 0; step < Q::kStages - 1; ++step) query.start(own.begin + step * kKeys, step);
  for (int c = 0; c < kElements; ++c) {
    const T* const x = params.query<T>(kv_head, row % params.group) + Q::component(c);
    if (Q::component(c) < params.d_h) query.q[c] = params.query_scale * widen(load_once(x));
  }

  // The leaves of this split, and the tree above them. Every step starts the copies of a later one, and waits for its own.
  float *const of_row = forests + row * n_splits * n_forest, state[kState];
  Subtrees<kState> subtrees{of_row + blockIdx.x * n_forest, own.begin};
  int step = 0;
  for (std::int64_t leaf = own.begin; leaf < own.end; leaf += kLeafKeys) {
    set_empty(state, kElements);
    for (std::int64_t a = leaf; a < leaf + kLeafKeys && a < used.end; a += kKeys, ++step) {
      query.start(a + (Q::kStages - 1) * kKeys, step + Q::kStages - 1);
      copy_async_wait<Q::kStages - 1>();
      query.add_eight_keys(a, step, state);
    }
    subtrees.push({kLeafLevel, leaf_at(leaf)}, state);
  }

  // The last warp of the query goes on, and sees what all have written.
  __syncwarp();
  const unsigned n_before = threadIdx.x == 0 ? atomic_inc_acq_rel(counters + row, gridDim.x - 1) : 0;
  if (__shfl_sync(0xFFFFFFFF, n_before, 0) != gridDim.x - 1) return;
  __syncwarp();

  // It joins the subtrees of all splits, left to right, in place: it never has more of them than it has read.
  Subtrees<kState> all{of_row, whole.begin};
  for (int i = 0; i < n_splits; ++i) {
    KeyRange rest = split_range(whole, i, n_splits);
    for (int j = 0; !rest.empty(); ++j) {
      const Subtree next = first_subtree(rest.begin, rest.end);
      Subtrees<kState>{of_row + i * n_forest, 0}.load(j, state);
      all.push(next, state);
      rest.begin = next.end();
    }
  }

  // What is left is merged from right to left, and finished.
  set_empty(state, kElements);
  while (all.size > 0) all.pop_into(state);
  if (threadIdx.x == 0) store_fresh(output.lse + row, finish_lse(state));
  for (int c = 0; c < kElements; ++c) {
    float* const z = output.out + row * params.d_v + Q::component(c);
    if (Q::component(c) < params.d_v) store_fresh(z, finish_value(state, state[kValues + c]));
  }
}

/// Vectors of a lane: one, or those of the longest row. @param size bytes of an element
constexpr int n_vectors(int d, int size) { return d * size <= 16 * kWarp ? 1 : (kLongestRow * size + 511) / 512; }

/// Four warps per multiprocessor, as far as there are leaves.
LaunchPlan plan(const DecodeParams& params, DType dtype, const LaunchOptions& options) {
  const int size = static_cast<int>(bytes_of(dtype)), d = std::max(params.d_h, params.d_v);
  const std::int64_t n_rows = params.n_rows(), n_leaves = leaves_of({params.begin, params.end}),
                     n_fill = 4 * device().n_multiprocessors / std::max<std::int64_t>(1, n_rows),
                     n_splits = options.n_splits > 0 ? options.n_splits : std::clamp<std::int64_t>(n_fill, 1, n_leaves),
                     n_forest =
                         2 * std::bit_width(std::uint64_t(n_leaves)) * kWarp * (kValues + n_vectors(d, size) * 16 / size);
  LaunchPlan plan{.n_splits = static_cast<int>(n_splits), .n_threads = kWarp, .n_counters = n_rows};
  plan.n_floats = n_rows * n_splits * n_forest;
  plan.n_stages = n_vectors(d, size) == 1 ? 4 : 2;
  plan.shared_bytes = static_cast<std::size_t>(plan.n_stages * 2 * kKeys * n_vectors(d, size) * kWarp) * sizeof(Bytes16);
  return plan;
}

void run(const DecodeParams& params, DType dtype, const DeviceOutput& output, const LaunchPlan& plan,
         const Workspace& workspace, Stream stream) {
  if (output.out == nullptr) throw DeviceError("copies: keeps no states, only finished rows");
  with_step_type(dtype, [&]<class T>(T) {
    const bool is_short = n_vectors(std::max(params.d_h, params.d_v), sizeof(T)) == 1;
    launch(
        is_short ? decode_copied<T, 1> : decode_copied<T, n_vectors(kLongestRow, sizeof(T))>,
        {.grid = {unsigned(plan.n_splits), unsigned(params.n_rows())}, .block = {kWarp}, .shared_bytes = plan.shared_bytes},
        stream, params, output, workspace.floats, plan.n_floats / (plan.n_splits * params.n_rows()), workspace.counters);
  });
}

}  // namespace

const LadderStep kCopies{.name = "copies",
                         .is_fused = true,
                         .n_additions = leaf_additions,
                         .refusal = accepts_aligned_rows,
                         .plan = plan,
                         .run = run};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
