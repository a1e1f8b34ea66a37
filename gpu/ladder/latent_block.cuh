// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A block of rung 8: the products of a leaf by four warpgroups, and its weights.
#pragma once

#include "gpu/ladder/ladder.hpp"
#include "gpu/platform/device.hpp"
#include "reference/state/state.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM::latent {

/// Lanes, threads of a warpgroup and of a block, and keys of a leaf.
inline constexpr int kWarp = 32, kWarpgroup = 128, kThreads = 4 * kWarpgroup, kKeys = static_cast<int>(kLeafKeys);
/// Vectors of 16 bytes in a row of a box, and in a box of keys; boxes of a leaf; leaves in shared memory.
inline constexpr int kRowVectors = 8, kBoxVectors = kKeys * kRowVectors, kBoxes = kLongestRow / kBoxColumns, kStages = 2;

/// True where parts of weights are in two units.
template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, Half>;

/// A weight as its lower, middle and upper part: as rung 6.
template <class T>
__device__ void split_weight(float w, T (&parts)[3]) {
  const auto head = [](float x) { return kIsHalf<T> ? narrow<T>(x) : T{static_cast<std::uint16_t>(bits_of(x) >> 16)}; };
  w *= kIsHalf<T> ? 0x1p15f : 1, parts[2] = head(w), w -= widen(parts[2]);
  w *= kIsHalf<T> ? 0x1p11f : 1, parts[1] = head(w), w -= widen(parts[1]);
  parts[0] = head(w);
}
/// The weight 2^(scale x - e) of a key: as rung 6.
__device__ inline float weight(float x, float scale, float e) {
  const float rounded = multiply(scale, x);
  if (rounded == -INFINITY) return -0.0f;
  if (!(std::fabs(e) < 0x1p22f)) x = rounded - e, scale = 1, e = 0;
  const float origin = 0x1.8p23f - e, whole = fused_multiply_add(x, scale, origin);
  const float p = exp2_polynomial(fused_multiply_add(x, scale, origin - whole), true);
  return whole < 0x1.8p23f - 126 ? 0.0f : multiply(p, float_of((bits_of(whole) << 23) + bits_of(1.0f)));
}

/// A block, and kRows queries. A thread has, of eight of them at a time, two: its slots.
template <class T, int kRows_>
struct Block {
  static constexpr int kRows = kRows_, kEights = kRows / 8, kSlots = 2 * kEights,
                       kPitch = kRows + 8;                                        ///< of weights, in floats
  static constexpr int kOwn = kThreads * 8 * kEights, kState = kOwn + 2 * kRows;  ///< floats of the states of a subtree
  static constexpr int kPartBytes = kRows * kBoxRowBytes, kUnits = kIsHalf<T> ? 2 : 1;
  /// Pieces of shared memory: vectors of 16 bytes, floats, and bytes of all with those of barriers and flags.
  static constexpr int kKeyVectors = kStages * kBoxes * kBoxVectors, kQueryVectors = kBoxes * kRows * kRowVectors;
  static constexpr int kPartVectors = 6 * kRows * kRowVectors, kWeightFloats = 2 * kKeys * kPitch, kStateFloats = 12 * kRows;
  static constexpr std::size_t kSharedBytes = (kKeyVectors + kQueryVectors + kPartVectors) * sizeof(Bytes16) +
                                              (kWeightFloats + kStateFloats) * sizeof(float) + 4 * 128;
  using Sums = float[2][kEights][4];  ///< of two boxes

  /// States as threads have them: components, with the shifts of their queries; thread r also query r's shift and sum.
  struct States {
    Sums n;
    float shift[kSlots], own_shift, own_sum;
  };

  const DecodeParams& params;
  const TensorMap& map;
  Count kv_head, first_row;                ///< the first of the queries, in the group of the kv head
  KeyRange used, own;                      ///< positions that have keys, and leaves of the split
  Shared<Bytes16> keys, queries, parts;    ///< [kStages][kBoxes], [kBoxes] and [2][3] boxes, of kRows rows but for keys
  Shared<float> weights, states, largest;  ///< [2][kKeys][kPitch]; shifts and sums [4][2][kRows]; [4][kRows]
  Shared<Barrier> full;                    ///< [kStages]
  Shared<int> found;                       ///< [2][warps], whether a sum is not finite

  __device__ static int thread() { return static_cast<int>(threadIdx.x); }
  __device__ static int lane() { return static_cast<int>(threadIdx.x % kWarp); }
  __device__ static int group() { return static_cast<int>(threadIdx.x / kWarpgroup); }
  __device__ static int warp() { return static_cast<int>(threadIdx.x % kWarpgroup / kWarp); }
  __device__ static int row(int slot, int own_lane = lane()) { return slot / 2 * 8 + own_lane % 4 * 2 + slot % 2; }
  /// Calls f(n, i) for the sums of a thread; the slot and the component of the i-th.
  template <class F>
  __device__ static void for_each(Sums& n, const F& f) {
    TREE_ATTN_UNROLL
    for (int i = 0; i < 8 * kEights; ++i) f(n[i / 4 / kEights][i / 4 % kEights][i % 4], i);
  }
  __device__ static int slot(int i) { return i / 4 % kEights * 2 + i % 2; }
  __device__ static int component(int i) {
    return (2 * group() + i / 4 / kEights) * kBoxColumns + 16 * warp() + lane() / 4 + i % 4 / 2 * 8;
  }
  __device__ static int vector_at(int row, int unit) { return row * kRowVectors + swizzled_unit(row, unit); }
  __device__ Shared<Bytes16> stage(int leaf) const { return keys + leaf % kStages * kBoxes * kBoxVectors; }
  __device__ std::int64_t position(int leaf) const { return own.begin + leaf * std::int64_t{kKeys}; }
  /// Starts to copy a leaf. One thread.
  __device__ void start(int leaf) const {
    const int first = int(position(leaf) - params.begin), head = int(params.head_of(kv_head));
    barrier_arrive_expect(full + leaf % kStages, kBoxes * kKeys * kBoxRowBytes);
    for (int box = 0; box < kBoxes; ++box)
      bulk_copy_tensor<T>(stage(leaf) + box * kBoxVectors, map, box * kBoxColumns, first, head,
                          int(params.entry_of(kv_head)), full + leaf % kStages);
  }
  /// Loads the queries as boxes, with the sign of the scale; zeros past the group and past d_h, and for a scale of 0.
  __device__ void load_queries() const {
    const float scale = params.score_scale == 0 ? 0.0f : std::copysign(params.query_scale, params.score_scale);
    for (int i = thread(); i < kRows * kBoxes * kRowVectors; i += kThreads) {
      const int r = i / (kBoxes * kRowVectors), unit = i % (kBoxes * kRowVectors);
      const std::int64_t at = std::int64_t{first_row} + r;
      T element[8] = {};
      for (int c = 0; c < 8 && at < params.group && 8 * unit + c < params.d_h; ++c)
        element[c] = narrow<T>(scale * widen(load_once(params.query<T>(kv_head, at) + 8 * unit + c)));
      Bytes16 bytes;
      for (int c = 0; c < 4; ++c) bytes.word[c] = pack(element[2 * c], element[2 * c + 1]);
      store16(queries + (unit / kRowVectors * kRows * kRowVectors + vector_at(r, unit % kRowVectors)), bytes);
    }
  }

  /// Starts S^T = K Q^T.
  __device__ void multiply_keys(int leaf, float (&s)[kEights][4]) const {
    const BoxMatrix k = box_matrix(stage(leaf)), q = box_matrix(queries);
    wgmma_fence(s);
    wgmma_64xNx16<T, 4 * kBoxes>(
        s, [&](int i) { return k + (i / 4 * kKeys * kBoxRowBytes + i % 4 * 32); },
        [&](int i) { return q + (i / 4 * kPartBytes + i % 4 * 32); });
    wgmma_commit();
  }
  /// Starts O^T = V^T P^T with some parts of the weights, of the keys 16 by 16.
  template <int first, int last>
  __device__ void multiply_values(int leaf, Sums& o) const {
    constexpr int n = last - first;
    wgmma_fence(o);
    TREE_ATTN_UNROLL
    for (int box = 0; box < 2; ++box) {
      const BoxMatrix v = box_matrix(stage(leaf) + (2 * group() + box) * kBoxVectors),
                      p = box_matrix(parts + (leaf % 2 * 3 + first) * kRows * kRowVectors);
      wgmma_64xNx16<T, 4 * n, true>(
          o[box], [&](int i) { return v + i / n * 2048; }, [&](int i) { return p + (i / n * 32 + i % n * kPartBytes); });
    }
    wgmma_commit();
  }
  /// Waits for them; where parts are in two units, the small ones are added first.
  __device__ void finish_values(int leaf, Sums& o) const {
    wgmma_wait<0>(o);
    if constexpr (kIsHalf<T>) {
      for_each(o, [](float& n, int) { n *= 0x1p-11f; });
      multiply_values<2, 3>(leaf, o);
      wgmma_wait<0>(o);
      for_each(o, [](float& n, int) { n *= 0x1p-15f; });
    }
  }

  /// Turns products into weights, their parts, the shift of every query and the sum of its weights. The first warpgroup; a
  /// sum is added as in rung 6: eight keys apart, and then by the butterfly.
  __device__ void weigh(int leaf, float (&s)[kEights][4]) const {
    const float scale = params.score_scale == 0 ? 1.0f : std::fabs(params.score_scale);
    const Shared<float> w = weights + leaf % 2 * kKeys * kPitch, state = states + leaf % 4 * 2 * kRows;
    // Keys of the leaf that are there, counted from its first.
    const std::int64_t n_before = used.begin - position(leaf), n_left = used.end - position(leaf);
    const int from = n_before > 0 ? static_cast<int>(n_before) : 0, to = n_left < kKeys ? static_cast<int>(n_left) : kKeys;
    // Opaque: what follows from it is not kept in registers from leaf to leaf.
    const int own_thread = opaque(thread()), own_lane = own_thread % kWarp, own_warp = own_thread / kWarp,
              key = 16 * own_warp + own_lane / 4;
    TREE_ATTN_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      float most = -INFINITY;
      for (int i = slot % 2; i < 4; i += 2) {
        float& x = s[slot / 2][i];
        if (const int at = key + i / 2 * 8; at < from || at >= to) x = -INFINITY;
        most = std::fmax(most, x);
      }
      for (int flip = 4; flip < kWarp; flip *= 2) most = std::fmax(most, __shfl_xor_sync(0xFFFFFFFF, most, flip));
      if (own_lane < 4) largest[own_warp * kRows + row(slot, own_lane)] = most;
    }
    sync_neighbours(kWarpgroup);
    TREE_ATTN_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      float most = -INFINITY;
      for (int i = 0; i < 4; ++i) most = std::fmax(most, largest[i * kRows + row(slot, own_lane)]);
      const float e = std::ceil(multiply(scale, most)) + 0.0f;
      if (own_thread < 4) state[row(slot, own_lane)] = e;
      for (int i = slot % 2; i < 4; i += 2) {
        float& x = s[slot / 2][i];
        x = weight(x, scale, e);
        w[(key + i / 2 * 8) * kPitch + row(slot, own_lane)] = x;
      }
    }
    TREE_ATTN_UNROLL
    for (int j = 0; j < kEights; j += 2) {
      std::uint32_t matrix[3][4];
      for (int i = 0; i < 4; ++i) {
        T left[3], right[3];
        split_weight(s[j + i / 2][i % 2 * 2], left), split_weight(s[j + i / 2][i % 2 * 2 + 1], right);
        for (int part = 0; part < 3; ++part) matrix[part][i] = pack(left[part], right[part]);
      }
      const int vector = vector_at(8 * j + own_lane / 16 * 8 + own_lane % 8, 2 * own_warp + own_lane / 8 % 2);
      for (int part = 0; part < 3; ++part)
        store_matrices_x4_transposed(parts + ((leaf % 2 * 3 + part) * kRows * kRowVectors + vector), matrix[part]);
    }
    async_proxy_fence();
    sync_neighbours(kWarpgroup);
    for (int i = own_thread; i < 8 * kRows; i += kWarpgroup) {
      float sum = 0;
      for (int k = i % 8; k < kKeys; k += 8) sum += w[k * kPitch + i / 8];
      for (int flip = 1; flip < 8; flip *= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, flip);
      if (i % 8 == 0) state[kRows + i / 8] = sum;
    }
  }

  /// The states of a leaf without its elements that are not finite, 0 times which would be NaN; then these: Inf or NaN, in
  /// their components alone.
  __device__ void without_not_finite(int leaf, Sums& o) const {
    constexpr int kExponent = kIsHalf<T> ? 0x7C00 : 0x7F80;
    for (int i = thread(); i < 8 * kBoxVectors; i += kThreads) {
      Bytes16 bytes = load16(stage(leaf) + i);
      for (int c = 0; c < 8; ++c)
        if ((~bytes.word[c / 2] >> c % 2 * 16 & kExponent) == 0) bytes.word[c / 2] &= 0xFFFF0000u >> c % 2 * 16;
      store16(stage(leaf) + i, bytes);
    }
    async_proxy_fence();
    __syncthreads();
    for_each(o, [](float& n, int) { n = 0; });
    multiply_values<0, 4 - kUnits>(leaf, o);
    finish_values(leaf, o);
    for (int key = 0; key < kKeys; ++key) {
      for_each(o, [&](float& n, int i) {
        const float w = weights[(leaf % 2 * kKeys + key) * kPitch + row(slot(i))];
        if (bits_of(w) == bits_of(-0.0f) || component(i) >= params.d_v) return;
        const float x = widen(load_once(params.value<T>(kv_head, position(leaf) + key) + component(i)));
        if (!(std::fabs(x) < INFINITY)) n += multiply(w, x);
      });
    }
    __syncthreads();
  }

  /// The states of a leaf, and meanwhile, if asked, scores and weights of the next one.
  template <bool kWeighsNext>
  __device__ void step(int leaf, int n_leaves, States& state) const {
    float s[kEights][4] = {};
    for_each(state.n, [](float& n, int) { n = 0; });
    if constexpr (kWeighsNext) {
      barrier_wait(full + (leaf + 1) % kStages, (leaf + 1) / kStages % 2);
      multiply_keys(leaf + 1, s);
    }
    barrier_wait(full + leaf % kStages, leaf / kStages % 2);
    multiply_values<0, 4 - kUnits>(leaf, state.n);
    if constexpr (kWeighsNext) {
      wgmma_wait<1>(s);
      weigh(leaf + 1, s);
    }
    finish_values(leaf, state.n);
    bool is_finite = true;
    for_each(state.n, [&](float& n, int) { is_finite = is_finite && std::fabs(n) < INFINITY; });
    const bool all_finite = __all_sync(0xFFFFFFFF, is_finite) != 0;
    if (lane() == 0) found[leaf % 2 * kThreads / kWarp + thread() / kWarp] = all_finite ? 0 : 1;
    __syncthreads();
    bool adds_more = false;
    for (int i = 0; i < kThreads / kWarp; ++i) adds_more = adds_more || found[leaf % 2 * kThreads / kWarp + i] != 0;
    if (adds_more) without_not_finite(leaf, state.n);
    if (thread() == 0 && leaf + kStages < n_leaves) start(leaf + kStages);
    const Shared<float> of_leaf = states + leaf % 4 * 2 * kRows;
    for (int slot = 0; slot < kSlots; ++slot) state.shift[slot] = of_leaf[row(slot)];
    if (thread() < kRows) state.own_shift = of_leaf[thread()], state.own_sum = of_leaf[kRows + thread()];
  }
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM::latent
