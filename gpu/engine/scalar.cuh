// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A sub-warp of lanes that reads rows in vectors of 16 bytes, and its pass over a range of leaves: scores, weights
/// and values of eight keys at a time (eq. (7), section 5).
///
/// A row of 256 bytes is 16 lanes wide, so a warp holds two sub-warps, each with keys of its own. A sub-warp is the smallest
/// thread group that walks over leaves and leaves states of units. The arithmetic is written once; where rows come from
/// is a parameter (IsRowSource). A source changes no bit.
#pragma once

#include "gpu/engine/forest.cuh"
#include "reference/state/state.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Neighbouring keys that a sub-warp computes together, the first at a multiple of eight, and such steps in a leaf.
inline constexpr int kKeysPerStep = 8, kStepsPerLeaf = static_cast<int>(kLeafKeys) / kKeysPerStep;

/// How a row is spread: lane i holds the vectors i, i + kLanes, ... of 16 bytes, kVectorsPerLane of them.
template <class Stored, int kLanes_, int kVectorsPerLane_>
struct SubWarp {
  using T = Stored;
  static constexpr int kLanes = kLanes_, kVectorsPerLane = kVectorsPerLane_;
  static constexpr int kElements = kVectorsPerLane * kPer16<T>;  ///< elements of a row that one lane holds
  static constexpr int kRows = 1;                                ///< queries that it serves at once
  static constexpr int kSlots = 1;                               ///< states that a lane holds a part of

  /// Which of the kRows queries a slot of a lane is about.
  __host__ __device__ static int row(int, int) { return 0; }
  /// Where a lane has its part of a state.
  __host__ __device__ static int place(int lane) { return lane; }

  /// Index in the row of element c of a lane.
  __host__ __device__ static int component(int lane, int c) {
    return (c / kPer16<T> * kLanes + lane) * kPer16<T> + c % kPer16<T>;
  }
};

/// Whether x is a number: neither Inf nor NaN.
__device__ __forceinline__ bool is_finite(float x) { return std::fabs(x) <= std::numeric_limits<float>::max(); }

/// Which of eight keys the sum that a lane ends with is of: that of its lowest bits, mirrored.
__device__ __forceinline__ int key_of_lane(int lane) { return (lane & 1) << 2 | (lane & 2) | (lane & 4) >> 2; }

/// The score s_a = score_scale q.k_a of one of eight neighbouring keys: that of key_of_lane().
///
/// Each lane multiplies its own elements. Then lanes whose numbers differ in one bit add their sums; while there are several
/// keys, each of the two keeps half of them. That takes 4 + 2 + 1 exchanges, and one for each further bit, instead of 8 per
/// bit. The additions have the order of a butterfly, the same for every key.
/// @param q elements of the query times query_scale, zero past d_h
/// @param key (i, vector) -> Bytes16 of key i
/// @paper{eq_7, eq. (7)}
template <IsSubWarp SubWarp, IsRows Key>
__device__ __forceinline__ float score_of_eight(const float (&q)[SubWarp::kElements], const Key& key, float score_scale,
                                                int lane) {
  using T = typename SubWarp::T;
  // Multiply.
  float sum[kKeysPerStep];
  TREE_ATTN_UNROLL
  for (int i = 0; i < kKeysPerStep; ++i) {
    sum[i] = 0;
    TREE_ATTN_UNROLL
    for (int vector = 0; vector < SubWarp::kVectorsPerLane; ++vector) {
      float k[kPer16<T>];
      widen<T>(key(i, vector), k);
      TREE_ATTN_UNROLL
      for (int c = 0; c < kPer16<T>; ++c) sum[i] = fused_multiply_add(q[vector * kPer16<T> + c], k[c], sum[i]);
    }
  }

  // Add over the lanes, halving the keys.
  TREE_ATTN_UNROLL
  for (int bit = 0; kKeysPerStep >> bit > 1; ++bit) {
    const int half = kKeysPerStep >> (bit + 1);
    const bool upper = (lane >> bit & 1) != 0;
    TREE_ATTN_UNROLL
    for (int i = 0; i < half; ++i) {
      const float mine = upper ? sum[i + half] : sum[i], theirs = upper ? sum[i] : sum[i + half];
      sum[i] = mine + __shfl_xor_sync(kAllLanes, theirs, 1 << bit);
    }
  }
  TREE_ATTN_UNROLL
  for (int distance = kKeysPerStep; distance < SubWarp::kLanes; distance *= 2)
    sum[0] += __shfl_xor_sync(kAllLanes, sum[0], distance);
  return multiply(score_scale, sum[0]);
}

/// Tells all lanes of a sub-warp what each has for its key_of_lane().
template <IsSubWarp SubWarp>
__device__ __forceinline__ void broadcast_of_keys(float own, int lane, float (&all)[kKeysPerStep]) {
  const int first = static_cast<int>(threadIdx.x % kWarp) - lane;
  TREE_ATTN_UNROLL
  for (int i = 0; i < kKeysPerStep; ++i) all[i] = __shfl_sync(kAllLanes, own, first + key_of_lane(i));
}

/// A weight of -0 marks a key that is not seen. Its value is not read.
__device__ __forceinline__ bool is_seen(float weight) { return bits_of(weight) != 0x80000000u; }

/// Sum of the weights of eight keys, neighbour with neighbour.
__device__ __forceinline__ float sum_of_weights(const float (&w)[kKeysPerStep]) {
  return ((std::fabs(w[0]) + std::fabs(w[1])) + (std::fabs(w[2]) + std::fabs(w[3]))) +
         ((std::fabs(w[4]) + std::fabs(w[5])) + (std::fabs(w[6]) + std::fabs(w[7])));
}

/// Adds eight neighbouring keys to the state of their leaf: e' = max(e, e_1 .. e_8), and with f = 2^(e - e')
///
///     D' = f D + sum_a w_a,   n' = w_8 v_8 + ( .. + (w_1 v_1 + f n)),   w_a = 2^(s_a - e'),   e_a = ceil(s_a),
///
/// one fused multiply-add per element and key. e is an integer, so f is a power of two and rescaling rounds nothing above
/// the smallest normal number. Every leaf of 64 keys is such a chain, starting from the empty state, so its bits depend
/// on its keys only.
///
/// Edges: a key with a score of -inf adds nothing, and its value is not read; a score of +inf or NaN makes D and n NaN.
/// @param s score of key_of_lane()
/// @param value (i, vector) -> Bytes16 of value i
/// @param[in,out] leaf the sums so far; set_empty() before the first key of a leaf
/// @paper{eq_7, eq. (7)}
template <IsSubWarp SubWarp, IsRows Value>
__device__ __forceinline__ void add_eight_keys(float s, int lane, const Value& value, LaneState<SubWarp::kElements>& leaf) {
  using T = typename SubWarp::T;
  constexpr float kNotSeen = -std::numeric_limits<float>::infinity();
  // The shift. Each lane has that of one key.
  float shift = key_shift(s);
  TREE_ATTN_UNROLL
  for (int distance = 1; distance < kKeysPerStep; distance *= 2) {
    const float other = __shfl_xor_sync(kAllLanes, shift, distance);
    shift = other > shift ? other : shift;
  }
  const Rescale<float> r = rescale(leaf.shift, shift);
  const float factor = r.right_is_high ? r.factor : 1.0f;
  leaf.shift = r.shift;

  // The weights. The difference is exact or nearly so where it is small.
  float weight[kKeysPerStep];
  broadcast_of_keys<SubWarp>(s == kNotSeen ? -0.0f : exp2_flushed(s - r.shift), lane, weight);

  // The sums.
  leaf.sum = fused_multiply_add(factor, leaf.sum, sum_of_weights(weight));
  TREE_ATTN_UNROLL
  for (int c = 0; c < SubWarp::kElements; ++c) leaf.n[c] = multiply(factor, leaf.n[c]);
  const auto add_value = [&](int i) {
    TREE_ATTN_UNROLL
    for (int vector = 0; vector < SubWarp::kVectorsPerLane; ++vector) {
      float v[kPer16<T>];
      widen<T>(value(i, vector), v);
      TREE_ATTN_UNROLL
      for (int c = 0; c < kPer16<T>; ++c) {
        float& n = leaf.n[vector * kPer16<T> + c];
        n = fused_multiply_add(weight[i], v[c], n);
      }
    }
  };
  if (__all_sync(kAllLanes, s != kNotSeen)) {  // nearly always
    TREE_ATTN_UNROLL
    for (int i = 0; i < kKeysPerStep; ++i) add_value(i);
  } else {
    for (int i = 0; i < kKeysPerStep; ++i) {
      if (is_seen(weight[i])) add_value(i);
    }
  }
}

/// The lowest n bits of eight, and all of them.
inline constexpr unsigned kAllEight = 0xFF;
__device__ __forceinline__ unsigned lowest_of_eight(int n) {
  return n <= 0 ? 0u : n >= kKeysPerStep ? kAllEight : (1u << n) - 1;
}

/// The maximum of n over the thread groups of this warp. All its lanes take that many steps, because they
/// shuffle together.
template <IsSubWarp SubWarp>
__device__ __forceinline__ int most_of_warp(int most) {
  TREE_ATTN_UNROLL
  for (int distance = SubWarp::kLanes; distance < kWarp; distance *= 2) {
    const int other = __shfl_xor_sync(kAllLanes, most, distance);
    most = other > most ? other : most;
  }
  return most;
}

/// The leaves of a thread group in steps of eight positions.
template <class Leaves = ContiguousLeaves>
class KeySteps {
 public:
  KeySteps() = default;
  /// See the constructor of the leaves.
  template <class Used>
  __device__ __forceinline__ KeySteps(KeyRange range, const Used& used)
      : leaves_(range, used), size_((leaves_.n_positions() + kKeysPerStep - 1) / kKeysPerStep) {
    // The state of a leaf of which this row sees no key is written all the same.
    const int least = leaves_.n_leaves() > 0 ? (leaves_.n_leaves() - 1) * kStepsPerLeaf + 1 : 0;
    size_ = size_ > least ? size_ : least;
  }

  __device__ __forceinline__ const Leaves& leaves() const { return leaves_; }
  /// Steps up to the last key, at least one of each leaf.
  __device__ __forceinline__ int size() const { return size_; }
  /// Which of the eight positions of a step have a key that is seen, bit by bit. Other rows are never read.
  __device__ __forceinline__ unsigned valid(int step) const {
    const SeenHere seen = leaves_.seen(step * kKeysPerStep);
    const unsigned hidden = lowest_of_eight(seen.begin), sinks = lowest_of_eight(seen.sinks);
    return lowest_of_eight(seen.end) & (~hidden | sinks);
  }
  /// Whether a step holds the last keys of its leaf.
  __device__ __forceinline__ bool ends_leaf(int step) const {
    return step + 1 == size_ || (step < size_ && step % kStepsPerLeaf == kStepsPerLeaf - 1);
  }

 private:
  Leaves leaves_;
  int size_ = 0;
};

/// Where a sub-warp finds its rows, step after step. wait() makes the rows of a step readable, keys() and values() return
/// readers of them, next() says that they have been read. Rows that are not valid may hold anything.
template <class Source>
concept IsRowSource = requires(Source& source, int step, unsigned valid) {
  source.wait(step, valid);
  { source.keys(step, valid) } -> IsRows;
  { source.values(step, valid) } -> IsRows;
  source.next(step);
};

/// The pass of a sub-warp over a range of leaves, for one query. All lanes of the warp call it.
/// @param target where states go: UnitTarget
template <IsSubWarp SubWarp, class Leaves, class Target, IsRowSource Source>
__device__ __forceinline__ void accumulate_keys(const DecodeParams& params, std::int64_t kv_head, std::int64_t r,
                                                const KeySteps<Leaves>& steps, const Target& target, Source& source) {
  using T = typename SubWarp::T;
  const int lane = lane_of<SubWarp>(threadIdx.x);
  float q[SubWarp::kElements];
  const T* const query = params.query<T>(kv_head, r);
  TREE_ATTN_UNROLL
  for (int c = 0; c < SubWarp::kElements; ++c) {
    const int component = SubWarp::component(lane, c);
    q[c] = component < params.d_h ? params.query_scale * widen(load_once(query + component)) : 0.0f;
  }

  auto forest = target.template forest<SubWarp, Leaves, InRegisters<SubWarp::kElements>>(steps.leaves(), lane);
  LaneState<SubWarp::kElements> leaf;
  set_empty(leaf);
  const int n_steps = most_of_warp<SubWarp>(steps.size());
  for (int step = 0; step < n_steps; ++step) {
    const unsigned valid = steps.valid(step);
    source.wait(step, valid);
    float s = score_of_eight<SubWarp>(q, source.keys(step, valid), params.score_scale, lane);
    if (params.softcap) s = params.softcap(s);
    if ((valid >> key_of_lane(lane) & 1) == 0) s = -std::numeric_limits<float>::infinity();
    add_eight_keys<SubWarp>(s, lane, source.values(step, valid), leaf);
    source.next(step);
    if (!steps.ends_leaf(step)) continue;
    forest.push(step / kStepsPerLeaf, leaf);
    set_empty(leaf);
  }
}

/// Bytes of vector `vector` of a row of d elements that are there, 0 to 16.
template <IsSubWarp SubWarp>
__device__ __forceinline__ int bytes_of_vector(int d, int lane, int vector) {
  const int left = d * static_cast<int>(sizeof(typename SubWarp::T)) - 16 * (vector * SubWarp::kLanes + lane);
  return left < 0 ? 0 : left < 16 ? left : 16;
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
