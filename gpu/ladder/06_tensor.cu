// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Rung 6 of the ladder: 16 bits on tensor cores, and queries that share keys together (section 6.3, grouped heads).
///
/// It defines the bits of all kernels on tensor cores: of 16 bits in values of at most 512 elements. What changed: a warp
/// serves eight queries of one key/value head, and multiplies a leaf of 64 keys with all of them, S^T = K Q^T, and then O^T
/// = V^T P^T. Keys and components are on the long side of the 16 x 8 x 16 products, and the queries in the eight columns.
/// Tensor cores add in F32: products of 16 one after the other, each as the hardware does. A weight is three parts' sum:
/// - BF16 has the exponents of F32 and 8 bits: the parts are the upper, middle and lower 8 of the 24 bits.
/// - F16 has 11 bits and few exponents: the upper part is in units of 2^-15, the others in units of 2^-26. At most 2^-51
///   of the largest weight of a leaf is lost.
///
/// A query has one column and three products, small parts first.
///
/// Floor: every key and value once for all queries of a tile; BF16, 32 query heads on 8 of 128, 8k keys: 33.6 MB, 7.2 us on
/// an H200, a quarter of rung 5. Prediction: 16 KiB in flight for each of four warps per multiprocessor is enough; but 66
/// splits are joined at 0.7 us each: 55 us. Measured with ex2 for weights: 135 us.
#include "gpu/ladder/ladder.hpp"
#include "gpu/platform/device.hpp"
#include "reference/state/state.hpp"

#include <algorithm>
#include <bit>

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

constexpr int kWarp = 32, kKeys = static_cast<int>(kLeafKeys), kRows = 8;  // lanes; keys of a leaf; queries of a tile

/// Elements of a padded row, and those of its values in a tile: of the shape alone.
constexpr int dim_of(int d) { return d <= 64 ? 64 : d <= 128 ? 128 : d <= 256 ? 256 : kLongestRow; }
constexpr int value_dim_of(int dim) { return dim <= 256 ? dim : 128; }
template <class T>
constexpr bool kIsHalf = std::is_same_v<T, Half>;

/// A weight as its lower, middle and upper part: w = 2^-15 (upper + 2^-11 (middle + lower)) in F16, in BF16 their sum.
template <class T>
__device__ void split_weight(float w, T (&parts)[3]) {
  const auto head = [](float x) { return kIsHalf<T> ? narrow<T>(x) : T{static_cast<std::uint16_t>(bits_of(x) >> 16)}; };
  w *= kIsHalf<T> ? 0x1p15f : 1, parts[2] = head(w), w -= widen(parts[2]);
  w *= kIsHalf<T> ? 0x1p11f : 1, parts[1] = head(w), w -= widen(parts[1]);
  parts[0] = head(w);
}

/// A warp and its queries. A lane has kElements components of the states of kLaneQueries of them.
template <class T, int kKeyDim>
struct Tile {
  static constexpr int kDim = value_dim_of(kKeyDim), kPitch = kDim / 8 + 1, kKeyPitch = kKeyDim / 8 + 1;
  static constexpr int kLaneQueries = 2, kElements = kDim / 8, kState = kValues + kElements,
                       kParts = 3;  ///< parts of a weight
  /// Products of a leaf, or weights: of a lane those of the keys 8 i + lane / 4 are in [i / 2][i % 2 * 2 + query].
  using Scores = float[kKeys / 16][4];
  using Weights = std::uint32_t[kKeys / 16][kParts][2];  ///< the parts as right operands, small ones first
  using States = float[kLaneQueries * kState];           ///< one after the other, each as in state.hpp

  const DecodeParams& params;
  std::int64_t kv_head, first_row;   ///< the first of the queries, in the group of the kv head
  KeyRange used;                     ///< positions of the split that have keys
  Shared<Bytes16> keys, values;      ///< of a leaf, [kKeys][kKeyPitch] and [kKeys][kPitch]: 8 rows begin in different banks
  std::uint32_t q[kKeyDim / 16][2];  ///< right operands of K Q^T

  __device__ static int lane() { return static_cast<int>(threadIdx.x); }
  /// The component of a row that element c of this lane is, and the row of the group that a query of it is.
  __device__ static int component(int c) { return int(blockIdx.z) * kDim + c / 2 * 16 + c % 2 * 8 + lane() / 4; }
  __device__ std::int64_t row(int query) const { return first_row + lane() % 4 * 2 + query; }
  __device__ static void clear(States& states) {
    for (int query = 0; query < kLaneQueries; ++query) set_empty(states + query * kState, kElements);
  }
  __device__ bool has_key(std::int64_t position) const { return position >= used.begin && position < used.end; }

  /// Loads the queries, with the sign of the scale, so that the largest product is the largest score; zeros past the group,
  /// past d_h, and for a scale of 0.
  __device__ void load_queries() {
    const float scale = params.score_scale == 0 ? 0.0f : std::copysign(params.query_scale, params.score_scale);
    const std::int64_t r = first_row + lane() / 4;
    TREE_ATTN_UNROLL
    for (int i = 0; i < kKeyDim / 8; ++i) {
      T pair[2] = {};
      for (int c = 0, j = 8 * i + lane() % 4 * 2; c < 2 && r < params.group && j + c < params.d_h; ++c)
        pair[c] = narrow<T>(scale * widen(load_once(params.query<T>(kv_head, r) + j + c)));
      q[i / 2][i % 2] = pack(pair[0], pair[1]);
    }
  }

  /// Starts to copy n vectors of each key, or value, of a leaf: zeros past element d, and where there is no key.
  __device__ void start(const DeviceView& view, int n, int from, int d, std::int64_t leaf, Shared<Bytes16> to) const {
    const T* const rows = view.row<T>(params.entry_of(kv_head), params.head_of(kv_head), leaf - params.begin) + from;
    for (int i = lane(); i < kKeys * n; i += kWarp) {
      const int key = i / n, at = i % n * kPer16<T>, n_left = has_key(leaf + key) ? d - from - at : 0;
      const int n_bytes = static_cast<int>(sizeof(T)) * (n_left < 0 ? 0 : n_left < kPer16<T> ? n_left : kPer16<T>);
      copy_async16(to + (key * (n + 1) + i % n), rows + key * view.stride[2] + at, n_bytes);
    }
    copy_async_commit();
  }
  /// Puts zeros in place of values that are not finite, among those that this lane has copied: 0 Inf, of a key that is not
  /// seen or of a part of a weight that is 0, would be NaN. @returns whether a lane has found any
  __device__ bool take_out_not_finite() const {
    constexpr int kExponent = kIsHalf<T> ? 0x7C00 : 0x7F80, kRow = kDim / 8;
    bool found = false;
    for (int i = lane(); i < kKeys * kRow; i += kWarp) {
      const Shared<Bytes16> at = values + (i / kRow * kPitch + i % kRow);
      Bytes16 bytes = load16(at);
      for (int c = 0; c < kPer16<T>; ++c)
        if ((~bytes.word[c / 2] >> c % 2 * 16 & kExponent) == 0)
          bytes.word[c / 2] &= 0xFFFF0000u >> c % 2 * 16, found = true;
      if (found) store16(at, bytes);
    }
    return __any_sync(0xFFFFFFFF, found) != 0;
  }

  /// S^T = K Q^T.
  __device__ void multiply_keys(Scores& s) const {
    TREE_ATTN_UNROLL
    for (int step = 0; step < kKeyDim / 16; ++step) {
      std::uint32_t k[kKeys / 16][4];
      load_matrices_x4(k, [&](int i) { return keys + ((16 * i + lane() % 16) * kKeyPitch + 2 * step + lane() / 16); });
      mma_16x8x16<T>(s, k, q + step);
    }
  }

  /// The weight 2^(scale x - e) as 2^i times a polynomial of g, all by roundings of IEEE 754: i is the whole number next to
  /// the exact exponent, which a sum with 1.5 2^23 leaves, g the rest, rounded once. 0 for i < -126. @pre |e| < 2^22
  __device__ static float weight(float x, float scale, float e) {
    const float origin = 0x1.8p23f - e, whole = fused_multiply_add(x, scale, origin);
    const float p = exp2_polynomial(fused_multiply_add(x, scale, origin - whole), true);
    return whole < 0x1.8p23f - 126 ? 0.0f : multiply(p, float_of((bits_of(whole) << 23) + bits_of(1.0f)));
  }

  /// Turns products x into weights 2^(s - e), with s = scale x and e = ceil(max s), and sets e and their sum D. From 2^23
  /// on scores are whole numbers, and the exact product would differ from e by any number: from 2^22 on s is rounded first.
  /// The weight of a score of +inf or NaN is NaN, although a maximum drops NaN; that of a key which is not seen is -0.
  /// @paper{eq_7, eq. (7)}
  __device__ void weigh(std::int64_t leaf, int query, Scores& s, float* state) const {
    const float scale = params.score_scale == 0 ? 1.0f : std::fabs(params.score_scale);
    float largest = -INFINITY, sum = 0;
    for (int i = 0; i < kKeys / 8; ++i) {
      float& x = s[i / 2][i % 2 * 2 + query];
      if (!has_key(leaf + 8 * i + lane() / 4)) x = -INFINITY;
      largest = std::fmax(largest, x);
    }
    for (int flip = 4; flip < kWarp; flip *= 2) largest = std::fmax(largest, __shfl_xor_sync(0xFFFFFFFF, largest, flip));
    const float e = std::ceil(multiply(scale, largest)) + 0.0f;
    for (int i = 0; i < kKeys / 8; ++i) {
      float& x = s[i / 2][i % 2 * 2 + query];
      const float rounded = multiply(scale, x);
      const float w = std::fabs(e) < 0x1p22f ? weight(x, scale, e) : weight(rounded - e, 1, 0);
      x = rounded == -INFINITY ? -0.0f : w;
      sum += x;
    }
    for (int flip = 4; flip < kWarp; flip *= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, flip);
    state[kShift] = e, state[kSum] = sum;
  }

  /// The parts of the weights as right operands of V^T P^T. A product leaves a lane two queries of one key, and takes two
  /// keys of one query: so each matrix of 8 x 8 parts is transposed.
  __device__ static void split(const Scores& s, Weights& weights) {
    for (int i = 0; i < kKeys / 8; ++i) {
      T left[3], right[3];
      split_weight(s[i / 2][i % 2 * 2], left), split_weight(s[i / 2][i % 2 * 2 + 1], right);
      for (int j = 0; j < kParts; ++j) weights[i / 2][j][i % 2] = pack(left[j], right[j]);
    }
    transpose_matrices<kKeys / 8 * kParts>(weights[0][0]);
  }

  /// O^T = V^T P^T, 64 components at a time. Where parts are in two units, the small ones are added first.
  __device__ void multiply_values(const Weights& weights, States& states) const {
    constexpr float kUpper = kIsHalf<T> ? 0x1p-15f : 1, kRest = kIsHalf<T> ? 0x1p-11f : 1;
    constexpr bool kTwoUnits = kIsHalf<T>;
    for (int step = 0; step < kDim / 16; step += 4) {
      float o[4][4] = {};
      const auto add = [&]<int first, int last>() {
        for (int i = 0; i < kKeys / 16; ++i) {
          const int key = 16 * i + lane() / 16 * 8 + lane() % 8;
          std::uint32_t v[4][4];
          load_matrices_x4_transposed(v, [&](int j) { return values + (key * kPitch + 2 * (step + j) + lane() / 8 % 2); });
          mma_16x8x16<T, last - first>(o, v, weights[i] + first);
        }
      };
      if constexpr (kTwoUnits) add.template operator()<0, 2>();
      for (int i = 0; kTwoUnits && i < 16; ++i) o[i / 4][i % 4] *= kRest;
      add.template operator()<kTwoUnits ? 2 : 0, kParts>();
      for (int c = 0; c < 8; ++c) {
        float* const n = states + kValues + 2 * step + c;
        n[0] = o[c / 2][c % 2 * 2] * kUpper, n[kState] = o[c / 2][c % 2 * 2 + 1] * kUpper;
      }
    }
  }

  /// Adds w x for every element x of a value that is not finite, of keys that are seen: Inf or NaN, in its component alone.
  __device__ void add_not_finite(std::int64_t leaf, const Scores& s, States& states) const {
    for (int key = 0; key < kKeys; ++key) {
      const T* const value = params.value<T>(kv_head, leaf + key);
      for (int query = 0; query < kLaneQueries; ++query) {
        float w = 0;  // the weight is with one of the eight lanes of the query
        for (int i = 0; i < kKeys / 8; ++i) w = i == key / 8 ? s[i / 2][i % 2 * 2 + query] : w;
        w = __shfl_sync(0xFFFFFFFF, w, key % 8 * 4 + lane() % 4);
        TREE_ATTN_UNROLL
        for (int c = 0; c < kElements; ++c) {
          if (bits_of(w) == bits_of(-0.0f) || component(c) >= params.d_v) continue;
          const float x = widen(load_once(value + component(c)));
          if (!(std::fabs(x) < INFINITY)) states[query * kState + kValues + c] += multiply(w, x);
        }
      }
    }
  }
};

/// The states of the subtrees that cover a range of leaves, left to right, in global memory, as in rung 4, of all queries of
/// a lane.
template <class Tile>
struct Subtrees {
  using States = typename Tile::States;
  static constexpr int kFloats = sizeof(States) / sizeof(float);

  float* memory;       ///< [subtrees][kFloats][lanes]
  std::int64_t begin;  ///< of the range
  int size = 0;

  __device__ float* at(int i, int c) const { return memory + (i * kFloats + c) * kWarp + threadIdx.x; }
  /// Merges the last subtree, which is on the left of the states, into them: merge() of state.hpp, element by element.
  __device__ void pop_into(States& states) {
    --size;
    Rescale<float> r;
    TREE_ATTN_UNROLL
    for (int c = 0; c < kFloats; ++c) {
      const float left = load_fresh(at(size, c));
      if (c % Tile::kState == kShift) r = rescale(left, states[c]);
      states[c] = c % Tile::kState == kShift ? r.shift : merge_element(r, left, states[c]);
    }
  }
  /// Appends a subtree, and merges while the last one is a right sibling, as a binary counter carries.
  /// @paper{thm_1, Thm. 1}
  __device__ void push(Subtree subtree, States& states) {
    for (; (subtree.index & 1) != 0 && subtree.parent().begin() >= begin; subtree = subtree.parent()) pop_into(states);
    TREE_ATTN_UNROLL
    for (int c = 0; c < kFloats; ++c) store_fresh(at(size, c), states[c]);
    ++size;
  }
};

/// A split of a query tile. @param forests n_forest floats each @param counters one per tile and part, zero before and after
/// @tparam T stored type, of 16 bits @tparam kKeyDim elements of a key, padded: 64, 128, 256 or kLongestRow
/// - Grid: [n_splits][query tiles][parts of the values, W::kDim components each].
/// - Block: one warp; shared memory for 64 keys and for their values.
/// - Reads: q, the keys and values of the split; the last warp of a tile and part also the forests of all of its splits.
/// - Writes: its forest; the last warp of a tile and part its components of z [n_rows][d_v], of part 0 also lse [n_rows].
/// @paper{alg_3, Alg. 3}
template <StoredType T, int kKeyDim>
__global__ void __launch_bounds__(kWarp, 1)
    decode_tiles(DecodeParams params, DeviceOutput output, float* forests, std::int64_t n_forest, unsigned* counters) {
  using W = Tile<T, kKeyDim>;
  const int n_splits = int(gridDim.x), index = int(blockIdx.z * gridDim.y + blockIdx.y);
  const std::int64_t n_of_head = (params.group + kRows - 1) / kRows, kv_head = blockIdx.y / n_of_head;
  const KeyRange whole = params.leaves(kv_head), own = split_range(whole, static_cast<int>(blockIdx.x), n_splits);
  const Shared<Bytes16> memory = Arena().take<Bytes16>(kKeys * (W::kKeyPitch + W::kPitch));
  KeyRange used = params.in_use(kv_head);
  used.end = used.end < own.end ? used.end : own.end;
  W tile{params, kv_head, blockIdx.y % n_of_head * kRows, used, memory, memory + kKeys * W::kKeyPitch, {}};
  tile.start(params.k, kKeyDim / 8, 0, params.d_h, own.begin, tile.keys);
  tile.load_queries();

  // The leaves of this split, and the tree above them. While keys are at work values are on their way, and the other way.
  typename W::States states;
  float* const of_tile = forests + index * n_splits * n_forest;
  Subtrees<W> subtrees{of_tile + blockIdx.x * n_forest, own.begin};
  for (std::int64_t leaf = own.begin; leaf < own.end; leaf += kLeafKeys) {
    typename W::Scores s = {};
    typename W::Weights weights;
    tile.start(params.v, W::kDim / 8, int(blockIdx.z) * W::kDim, params.d_v, leaf, tile.values);
    copy_async_wait<1>(), __syncwarp();
    tile.multiply_keys(s);
    __syncwarp();
    tile.start(params.k, kKeyDim / 8, 0, params.d_h, leaf + kLeafKeys, tile.keys);
    for (int query = 0; query < W::kLaneQueries; ++query) tile.weigh(leaf, query, s, states + query * W::kState);
    W::split(s, weights);
    copy_async_wait<1>();
    const bool adds_more = tile.take_out_not_finite();
    __syncwarp();
    tile.multiply_values(weights, states);
    if (adds_more) tile.add_not_finite(leaf, s, states);
    __syncwarp();
    subtrees.push({kLeafLevel, leaf_at(leaf)}, states);
  }

  // The last warp of the tile goes on, and sees what all have written.
  __syncwarp();
  const unsigned n_before = threadIdx.x == 0 ? atomic_inc_acq_rel(counters + index, gridDim.x - 1) : 0;
  if (__shfl_sync(0xFFFFFFFF, n_before, 0) != gridDim.x - 1) return;
  __syncwarp();

  // It joins the subtrees of all splits, left to right, in place: it never has more of them than it has read.
  Subtrees<W> all{of_tile, whole.begin};
  for (int i = 0; i < n_splits; ++i) {
    KeyRange rest = split_range(whole, i, n_splits);
    for (int j = 0; !rest.empty(); ++j) {
      const Subtree next = first_subtree(rest.begin, rest.end);
      W::clear(states), Subtrees<W>{of_tile + i * n_forest, 0, j + 1}.pop_into(states);
      all.push(next, states);
      rest.begin = next.end();
    }
  }

  // What is left is merged from right to left, and finished.
  W::clear(states);
  while (all.size > 0) all.pop_into(states);
  TREE_ATTN_UNROLL
  for (int i = 0; i < W::kLaneQueries * W::kElements; ++i) {
    const int query = i / W::kElements, c = i % W::kElements;
    const float* const state = states + query * W::kState;
    const std::int64_t row = kv_head * params.group + tile.row(query);
    if (tile.row(query) >= params.group) continue;
    if (W::component(c) == 0) store_fresh(output.lse + row, finish_lse(state));
    if (W::component(c) >= params.d_v) continue;
    store_fresh(output.out + row * params.d_v + W::component(c), finish_value(state, state[kValues + c]));
  }
}

/// Four warps per multiprocessor, as far as there are leaves. Values without components have one part, for shift and sum.
LaunchPlan plan(const DecodeParams& params, DType, const LaunchOptions& options) {
  const int key_dim = dim_of(std::max(params.d_h, params.d_v)), dim = value_dim_of(key_dim);
  const std::int64_t n_leaves = leaves_of({params.begin, params.end}), n_parts = (params.d_v - 1) / dim + 1,
                     n_tiles = params.batch_kv_heads() * ((params.group + kRows - 1) / kRows) * n_parts,
                     n_fill = 4 * device().n_multiprocessors / std::max<std::int64_t>(1, n_tiles),
                     n_splits = options.n_splits > 0 ? options.n_splits : std::clamp<std::int64_t>(n_fill, 1, n_leaves),
                     n_state = kWarp * 2 * (kValues + dim / 8);
  LaunchPlan plan{.n_splits = static_cast<int>(n_splits), .n_threads = kWarp, .n_counters = n_tiles, .path = "tensor"};
  plan.n_floats = n_tiles * n_splits * 2 * std::bit_width(std::uint64_t(n_leaves)) * n_state;
  plan.n_stages = 2, plan.shared_bytes = kKeys * (static_cast<std::size_t>(key_dim + dim) / 8 + 2) * sizeof(Bytes16);
  return plan;
}

void run(const DecodeParams& params, DType dtype, const DeviceOutput& output, const LaunchPlan& plan,
         const Workspace& workspace, Stream stream) {
  if (output.out == nullptr) throw DeviceError("tensor: keeps no states, only finished rows");
  with_step_type(dtype, [&]<class T>(T) {
    if constexpr (DTypeTraits<T>::kCores == KernelCores::TensorCores) {
      const int dim = dim_of(std::max(params.d_h, params.d_v)), n_parts = (params.d_v - 1) / value_dim_of(dim) + 1;
      const auto kernel = dim <= 128 ? (dim == 64 ? decode_tiles<T, 64> : decode_tiles<T, 128>)
                                     : (dim == 256 ? decode_tiles<T, 256> : decode_tiles<T, kLongestRow>);
      const dim3 grid{unsigned(plan.n_splits), unsigned(plan.n_counters / n_parts), unsigned(n_parts)};
      launch(kernel, {.grid = grid, .block = {kWarp}, .shared_bytes = plan.shared_bytes}, stream, params, output,
             workspace.floats, plan.n_floats / (plan.n_counters * plan.n_splits), workspace.counters);
    }
  });
}

}  // namespace

const LadderStep kTensor{
    .name = "tensor", .n_additions = n_additions, .refusal = accepts_tensor_rows, .plan = plan, .run = run};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
