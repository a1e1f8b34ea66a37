// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Rung 4 of the ladder: the keys of a query are split over blocks, and the last block merges (section 5, Alg. 3).
///
/// What changed: a warp per query *and split*. Each leaves the subtrees of its split in memory and counts itself; the last
/// joins them all: the tree over devices, inside one. Its leaf has the bits of plain.hpp. Floor: keys and values once per
/// query; F32, 16 heads of 64, 8k keys: 67 MB, 14.4 us on an H200. Prediction: four warps a multiprocessor wait 2 us for
/// eight rows, 1.1 TB/s; the join takes 33 times 0.7 us: 85 us. Measured with the leaf of rung 3, rows of 128: 92 us.
#include "gpu/ladder/ladder.hpp"
#include "gpu/platform/device.hpp"
#include "reference/state/state.hpp"

#include <algorithm>
#include <bit>

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

// Lanes; neighbouring keys that a warp adds at once; components of a lane, where values have up to 128, or more.
constexpr int kWarp = 32, kKeys = 8, kShort = 4, kLong = (kLongestRow + 127) / 128 * 4;

/// A query as a warp knows it. Of a value a lane has kElements components: four of each 128.
template <StoredType T, int kElements>
struct Query {
  const DecodeParams& params;
  std::int64_t kv_head;
  Shared<float> q, w;  ///< times query_scale, [d_h]; of a leaf the scores, and then the weights

  /// The component of a value that element c of this lane is.
  __device__ static int component(int c) { return (c / 4 * kWarp + static_cast<int>(threadIdx.x)) * 4 + c % 4; }
  struct alignas(4 * sizeof(T)) Four {
    T element[4];
  };
  __device__ static Four four(const T* from) { return load_once(reinterpret_cast<const Four*>(from)); }

  /// Scores of eight keys, by four threads each. A dot product has sixteen lanes. Thread t has four, from 4 t on: the t-th
  /// four of every 16 elements, or the t-th eight of every 32, where neighbours share a lane. Then threads add their lanes.
  __device__ float score_of_eight(std::int64_t position) const {
    constexpr int kOf = sums_in_pairs(DTypeTraits<T>::kDType) ? 8 : 4;
    float lane[4] = {};
    const bool is_seen = (position += threadIdx.x / 4) < params.in_use(kv_head).end;
    for (int i = static_cast<int>(threadIdx.x) % 4 * kOf; is_seen && i < params.d_h; i += 4 * kOf) {
      for (int c = 0; c < kOf; ++c)
        lane[4 * c / kOf] +=
            multiply(widen(four(params.key<T>(kv_head, position) + i + c / 4 * 4).element[c % 4]), q[i + c]);
    }
    for (int flip = 2; flip > 0; flip /= 2)
      for (float& sum : lane) sum += __shfl_xor_sync(0xFFFFFFFF, sum, flip);
    return is_seen ? multiply(params.score_scale, (lane[0] + lane[1]) + (lane[2] + lane[3])) : -INFINITY;
  }

  /// The state of a leaf: e = max_a ceil(s_a), D = sum_a w_a and n = sum_a w_a v_a with w_a = 2^(s_a - e), each sum a tree
  /// of 64 positions. A key with a score of -inf adds nothing, whatever its value; +inf or NaN make D and n NaN.
  /// @paper{eq_7, eq. (7)}
  __device__ void set_leaf(std::int64_t first, float* leaf) const {
    const int lane = static_cast<int>(threadIdx.x);
    float shift = -INFINITY, sum = 0, waiting[3][kElements] = {}, x[kKeys];
    for (int i = 0; i < kLeafKeys; i += kKeys) {
      const float s = score_of_eight(first + i);
      if (shift = std::fmax(shift, key_shift(s)); lane % 4 == 0) w[i + lane / 4] = s;
    }
    for (int flip = 4; flip < kWarp; flip *= 2) shift = std::fmax(shift, __shfl_xor_sync(0xFFFFFFFF, shift, flip));
    __syncwarp();

    // Weights: those of two neighbours, and -0 of a key that is not seen.
    for (int a = 2 * lane; a < 2 * lane + 2; ++a) {
      const float s = w[a], e = key_shift(s);
      const float weight = s == -INFINITY ? -0.0f : multiply(exp2_fraction(s - e), pow2(e - shift));
      w[a] = weight, sum += std::fabs(weight);
    }
    for (int flip = 1; flip < kWarp; flip *= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, flip);
    leaf[kShift] = shift, leaf[kSum] = sum;
    __syncwarp();

    // Values: eight keys at a time, and sums of 8, 16 and 32 that wait for their right neighbours.
    for (int i = 0; i < kLeafKeys; i += kKeys) {
      TREE_ATTN_UNROLL
      for (int c = 0; c < kElements; ++c) {
        for (int a = 0; a < kKeys; ++a) {
          const bool is_read = bits_of(w[i + a]) != bits_of(-0.0f) && component(c) < params.d_v;
          const T* const v = params.value<T>(kv_head, first + i + a) + component(c) / 4 * 4;
          x[a] = is_read ? multiply(w[i + a], widen(four(v).element[c % 4])) : -0.0f;
        }
        for (int m = kKeys / 2; m > 0; m /= 2)
          for (int a = 0; a < m; ++a) x[a] = x[2 * a] + x[2 * a + 1];
        const float of_16 = waiting[0][c] + x[0], of_32 = waiting[1][c] + of_16;
        if (i % 16 == 0) waiting[0][c] = x[0];
        if (i % 32 == 8) waiting[1][c] = of_16;
        if (i == 24) waiting[2][c] = of_32;
        leaf[kValues + c] = waiting[2][c] + of_32;  // the sum of the leaf after the last eight
      }
    }
    __syncwarp();
  }
};

/// The states of subtrees, left to right, in global memory. A lane has kState floats of each, which no other lane reads.
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
  __device__ void push(Subtree subtree, float* state) {
    for (; (subtree.index & 1) != 0 && subtree.parent().begin() >= begin; subtree = subtree.parent()) pop_into(state);
    for (int c = 0; c < kState; ++c) store_fresh(memory + (size * kState + c) * kWarp + threadIdx.x, state[c]);
    ++size;
  }
};

/// A split of a query. @param forests of all splits, n_forest floats each @param counters of queries, 0 before and after
/// @tparam T stored type @tparam kElements components of a value that a lane has
/// - Grid: [n_splits][n_rows].
/// - Block: one warp, with the query and the 64 weights of a leaf in shared memory.
/// - Reads: q, the keys and values of the split; the last warp of a query also the forests of all of its splits.
/// - Writes: its forest; the last warp of a query z [n_rows][d_v] and lse [n_rows].
/// @paper{alg_3, Alg. 3}
template <StoredType T, int kElements>
__global__ void __launch_bounds__(kWarp, 1)
    decode_split(DecodeParams params, DeviceOutput output, float* forests, std::int64_t n_forest, unsigned* counters) {
  constexpr int kState = kValues + kElements;
  const int n_splits = static_cast<int>(gridDim.x);
  const std::int64_t row = blockIdx.y, kv_head = row / params.group;
  const KeyRange whole = params.leaves(kv_head), own = split_range(whole, static_cast<int>(blockIdx.x), n_splits);
  Arena arena;
  Query<T, kElements> query{params, kv_head, arena.take<float>(kLongestRow), arena.take<float>(kLeafKeys)};
  for (int i = static_cast<int>(threadIdx.x); i < params.d_h; i += kWarp)
    query.q[i] = multiply(params.query_scale, widen(load_once(params.query<T>(kv_head, row % params.group) + i)));
  __syncwarp();

  // The leaves of this split, and the tree above them.
  float *const of_row = forests + row * n_splits * n_forest, state[kState];
  Subtrees<kState> subtrees{of_row + blockIdx.x * n_forest, own.begin};
  for (std::int64_t leaf = own.begin; leaf < own.end; leaf += kLeafKeys)
    query.set_leaf(leaf, state), subtrees.push({kLeafLevel, leaf_at(leaf)}, state);

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
  for (int c = 0; c < kElements; ++c)
    if (query.component(c) < params.d_v)
      store_fresh(output.out + row * params.d_v + query.component(c), finish_value(state, state[kValues + c]));
}

/// Four warps per multiprocessor, as far as there are leaves.
LaunchPlan plan(const DecodeParams& params, DType, const LaunchOptions& options) {
  const std::int64_t n_rows = params.n_rows(), n_leaves = leaves_of({params.begin, params.end}),
                     n_fill = 4 * device().n_multiprocessors / std::max<std::int64_t>(1, n_rows),
                     n_splits = options.n_splits > 0 ? options.n_splits : std::clamp<std::int64_t>(n_fill, 1, n_leaves),
                     n_forest = 2 * std::bit_width(std::uint64_t(n_leaves)) * kWarp *
                                (kValues + (params.d_v <= 128 ? kShort : kLong));
  LaunchPlan plan{.n_splits = static_cast<int>(n_splits), .n_threads = kWarp, .n_counters = n_rows};
  plan.n_floats = n_rows * n_splits * n_forest, plan.shared_bytes = (kLongestRow + 128) * sizeof(float);
  return plan;
}

void run(const DecodeParams& params, DType dtype, const DeviceOutput& output, const LaunchPlan& plan,
         const Workspace& workspace, Stream stream) {
  if (output.out == nullptr) throw DeviceError("split: keeps no states, only finished rows");
  const Launch config{{unsigned(plan.n_splits), unsigned(params.n_rows())}, {kWarp}, plan.shared_bytes};
  with_step_type(dtype, [&]<class T>(T) {
    launch(params.d_v <= 128 ? decode_split<T, kShort> : decode_split<T, kLong>, config, stream, params, output,
           workspace.floats, plan.n_floats / (plan.n_splits * params.n_rows()), workspace.counters);
  });
}

}  // namespace

const LadderStep kSplit{
    .name = "split", .n_additions = n_additions, .refusal = accepts_aligned_rows, .plan = plan, .run = run};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
