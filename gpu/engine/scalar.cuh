// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A warp on scalar cores, and its pass over a range of leaves: the scores of 64 keys, their weights, and the sums of
/// their values (eq. (7), section 5).
///
/// It has the bits of plain.hpp, which rung 4 of the ladder has too: sixteen lanes of a dot product, no product fused with a
/// sum, the weights of a leaf under its one shift, and a tree over its positions. The arithmetic is written once, for all
/// stored types; where rows come from is a parameter (IsRowSource). A source changes no bit.
#pragma once

#include "gpu/engine/forest.cuh"
#include "gpu/engine/launch.hpp"
#include "gpu/engine/unit_forest.cuh"
#include "reference/state/state.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Neighbouring keys that a warp computes together, the first at a multiple of eight, and such steps in a leaf.
inline constexpr int kKeysPerStep = 8, kStepsPerLeaf = static_cast<int>(kLeafKeys) / kKeysPerStep;

/// A warp over which values of up to kDim elements are spread: lane i holds the i-th four elements of each 128.
template <class Stored, int kDim_>
struct ScalarWarp {
  using T = Stored;
  static constexpr int kLanes = kWarp, kDim = kDim_;
  static constexpr int kElements = kDim / kLanes;            ///< components of a value that one lane holds
  static constexpr int kRows = 1;                            ///< queries that it serves at once
  static constexpr bool kWaitsInRegisters = kElements <= 8;  ///< whether a leaf waits there for its sibling
  static constexpr int kLaneQueries = 1;                     ///< those that a lane holds a part of the state of
  /// Elements of a row in shared memory, which holds a key or a value.
  static constexpr int kRowElements = kDim < kLongestRow ? kDim : kLongestRow;

  /// The query, of kRows, that one of a lane is.
  __host__ __device__ static int row(int, int) { return 0; }
  /// The index of a lane's part in a state.
  __host__ __device__ static int part(int lane) { return lane; }

  /// Index in the value of element c of a lane.
  __host__ __device__ static int component(int lane, int c) { return (c / 4 * kLanes + lane) * 4 + c % 4; }
};

/// Four neighbouring elements, as one load has them.
template <class T>
struct alignas(4 * sizeof(T)) Four {
  T element[4];
};

/// Eight rows of keys or values: (i, first) -> four elements of row i, from element `first` on, a multiple of four.
template <class Rows, class T>
concept IsRows = requires(const Rows& rows, int i, int first) {
  { rows(i, first) } -> std::same_as<Four<T>>;
};

/// Adds the products of a query and one of eight keys to the four lanes of a thread, 4 t to 4 t + 3.
/// @tparam kOf elements that four lanes take one after the other: four, or eight where two neighbours share a lane
template <class Warp, int kOf, class Keys>
__device__ __forceinline__ void add_products(Shared<const float> q, const Keys& keys, int d, float (&sum)[4]) {
  using T = typename Warp::T;
  constexpr int kRound = Warp::kDim <= 256 ? Warp::kDim : 16 * kOf;
  // Four elements past the end are zeros: rows are copied by 16 bytes. Eight are, where these are eight elements.
  constexpr bool kMayLackHalf = kOf * sizeof(T) > sizeof(Bytes16);
  const int lane = static_cast<int>(threadIdx.x % kWarp), key = lane / 4;
  const auto add = [&](int first) {
    TREE_ATTN_UNROLL
    for (int half = 0; half < kOf; half += 4) {
      if (kMayLackHalf && half > 0 && first + half >= d) continue;
      const Four<T> k = keys(key, first + half);
      const Four<float> x = shared_as<const Four<float>>(q)[(first + half) / 4];
      TREE_ATTN_UNROLL
      for (int c = 0; c < 4; ++c) sum[(half + c) * 4 / kOf] += multiply(widen(k.element[c]), x.element[c]);
    }
  };
  // Some threads may have none of the last elements.
  const int whole = d & -4 * kOf;
  TREE_ATTN_LOOP
  for (int i = 0; i < Warp::kRowElements && i < whole; i += kRound) {
    TREE_ATTN_UNROLL
    for (int j = i; j < i + kRound; j += 4 * kOf)
      if (j < whole) add(j + lane % 4 * kOf);
  }
  if (whole + lane % 4 * kOf < d) add(whole + lane % 4 * kOf);
}

/// The score s = score_scale q.k of one of eight neighbouring keys: threads 4 i to 4 i + 3 get that of key i.
///
/// The products are added in sixteen lanes, element i in lane i mod 16, or i / 2 mod 16. Thread t of a key has four of them,
/// so it reads 16 bytes of F32 or BF16 at once. Then threads add: lanes 8 apart, lanes 4 apart, neighbours.
/// @param q elements of the query times query_scale, and zeros up to a multiple of eight
/// @param d elements of a key @param has_key whether this thread's key is there; else it is not read, and the score is 0
/// @param in_pairs of F32, which stands for keys of another type beside values of a third: DecodeParams::in_pairs
/// @paper{eq_7, eq. (7)}
template <class Warp, class Keys>
requires IsScalarWarp<Warp> && IsRows<Keys, typename Warp::T> __device__ __forceinline__ float score_of_eight(
    Shared<const float> q, const Keys& keys, int d, bool has_key, float score_scale, bool in_pairs) {
  constexpr DType kStored = DTypeTraits<typename Warp::T>::kDType;
  float sum[4] = {};
  if (has_key) {
    if (sums_in_pairs(kStored) || (kStored == DType::F32 && in_pairs))
      add_products<Warp, 8>(q, keys, d, sum);
    else
      add_products<Warp, 4>(q, keys, d, sum);
  }
  TREE_ATTN_UNROLL
  for (int distance = 2; distance > 0; distance /= 2) {
    TREE_ATTN_UNROLL
    for (int c = 0; c < 4; ++c) sum[c] += __shfl_xor_sync(kAllLanes, sum[c], distance);
  }
  return multiply(score_scale, (sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/// A weight of -0 marks a key that is not seen. Its value is not read.
__device__ __forceinline__ bool is_seen(float weight) { return bits_of(weight) != 0x80000000u; }

/// Shift and sum of a leaf: e = max_a ceil(s_a) and D = sum_a w_a, over a tree of 64 positions. Each score becomes its
/// weight w_a = 2^(s_a - e). All lanes of a warp call it, and see the weights of all.
///
/// Edges: a score of -inf is of a key that is not seen, and adds nothing; one of +inf or NaN makes D NaN.
/// @param[in,out] w [64] @param shift largest shift of a key of this lane @returns whether all keys are seen
template <int kElements>
__device__ __forceinline__ bool weigh_leaf(Shared<float> w, float shift, LaneState<kElements>& leaf) {
  constexpr float kNotSeen = -std::numeric_limits<float>::infinity();
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  TREE_ATTN_UNROLL
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    shift = std::fmax(shift, __shfl_xor_sync(kAllLanes, shift, distance));
  __syncwarp();
  float weight[2];  // of two neighbours
  TREE_ATTN_UNROLL
  for (int i = 0; i < 2; ++i) {
    const float s = w[2 * lane + i], e = key_shift(s);
    weight[i] = s == kNotSeen ? -0.0f : multiply(exp2_fraction(s - e), pow2(e - shift));
    w[2 * lane + i] = weight[i];
  }
  float sum = std::fabs(weight[0]) + std::fabs(weight[1]);
  TREE_ATTN_UNROLL
  for (int distance = 1; distance < kWarp; distance *= 2) sum += __shfl_xor_sync(kAllLanes, sum, distance);
  leaf.shift = shift, leaf.sum = sum;
  const bool all_seen = __all_sync(kAllLanes, is_seen(weight[0]) && is_seen(weight[1])) != 0;
  __syncwarp();
  return all_seen;
}

/// n = sum_a w_a v_a of eight neighbouring keys, a tree. Values of keys that are not seen are not read.
/// @param w [8] @param d_v elements of a value @param[out] n a lane's components
template <class Warp, class Values>
requires IsScalarWarp<Warp> && IsRows<Values, typename Warp::T> __device__ __forceinline__ void sum_of_eight(
    Shared<const float> w, const Values& values, int d_v, bool all_seen, float (&n)[Warp::kElements]) {
  float weight[kKeysPerStep];
  TREE_ATTN_UNROLL
  for (int a = 0; a < kKeysPerStep; a += 4) {
    const Four<float> four = shared_as<const Four<float>>(w)[a / 4];
    TREE_ATTN_UNROLL
    for (int c = 0; c < 4; ++c) weight[a + c] = four.element[c];
  }
  TREE_ATTN_UNROLL
  for (int first = 0; first < Warp::kElements; first += 4) {
    const int component = Warp::component(static_cast<int>(threadIdx.x % kWarp), first);
    const auto multiply_value = [&](int a, float(&to)[4]) {
      const Four<typename Warp::T> v = values(a, component);
      TREE_ATTN_UNROLL
      for (int c = 0; c < 4; ++c) to[c] = multiply(weight[a], widen(v.element[c]));
    };
    float x[kKeysPerStep][4] = {};
    if (component >= d_v) {
      // Components past the value are not read, and x is zero.
    } else if (all_seen) {
      TREE_ATTN_UNROLL
      for (int a = 0; a < kKeysPerStep; ++a) multiply_value(a, x[a]);
    } else {
      TREE_ATTN_UNROLL
      for (int a = 0; a < kKeysPerStep; ++a) {
        TREE_ATTN_UNROLL
        for (int c = 0; c < 4; ++c) x[a][c] = -0.0f;
        if (is_seen(weight[a])) multiply_value(a, x[a]);
      }
    }
    TREE_ATTN_UNROLL
    for (int m = kKeysPerStep / 2; m > 0; m /= 2) {
      TREE_ATTN_UNROLL
      for (int a = 0; a < m; ++a) {
        TREE_ATTN_UNROLL
        for (int c = 0; c < 4; ++c) x[a][c] = x[2 * a][c] + x[2 * a + 1][c];
      }
    }
    TREE_ATTN_UNROLL
    for (int c = 0; c < 4; ++c) n[first + c] = x[0][c];
  }
}

/// The tree of a leaf above its steps: sums of 8, 16 and 32 keys wait for those on their right, as in a binary counter.
template <int kElements>
class LeafSums {
 public:
  /// Adds step i. @param[in,out] n its sum; after the last step that of the leaf
  __device__ __forceinline__ void add(int i, float (&n)[kElements]) {
    bool carries = true;
    TREE_ATTN_UNROLL
    for (int level = 0; level < kLevels; ++level) {
      if (!carries) continue;
      carries = (i >> level & 1) != 0;
      TREE_ATTN_UNROLL
      for (int c = 0; c < kElements; ++c) {
        if (carries)
          n[c] = waiting_[level][c] + n[c];
        else
          waiting_[level][c] = n[c];
      }
    }
  }

 private:
  static constexpr int kLevels = 3;
  static_assert(1 << kLevels == kStepsPerLeaf);
  float waiting_[kLevels][kElements];
};

/// The lowest n bits of eight, and all of them.
inline constexpr unsigned kAllEight = 0xFF;
__device__ __forceinline__ unsigned lowest_of_eight(int n) {
  return n <= 0 ? 0u : n >= kKeysPerStep ? kAllEight : (1u << n) - 1;
}

/// The leaves of a thread group in steps of eight positions.
template <class Leaves = ContiguousLeaves>
class KeySteps {
 public:
  KeySteps() = default;
  /// See the constructor of the leaves.
  template <class Used>
  __device__ __forceinline__ KeySteps(KeyRange range, const Used& used)
      : leaves_(range, used), size_((leaves_.n_positions() + kKeysPerStep - 1) / kKeysPerStep) {}

  __device__ __forceinline__ const Leaves& leaves() const { return leaves_; }
  /// Steps up to the last key that is seen; and those of leaf i: eight, but of the last with such a key, and none after it.
  __device__ __forceinline__ int size() const { return size_; }
  __device__ __forceinline__ int of_leaf(int i) const {
    const int left = size_ - i * kStepsPerLeaf;
    return left < kStepsPerLeaf ? left : kStepsPerLeaf;
  }
  /// The positions of a step, of eight, that have a key that is seen, bit by bit. Other rows are never read.
  __device__ __forceinline__ unsigned valid(int step) const {
    const SeenHere seen = leaves_.seen(step * kKeysPerStep);
    const unsigned hidden = lowest_of_eight(seen.begin), sinks = lowest_of_eight(seen.sinks);
    return lowest_of_eight(seen.end) & (~hidden | sinks);
  }

 private:
  Leaves leaves_;
  int size_ = 0;
};

/// A source in which a warp finds its rows, eight at a time: of each leaf the keys of its steps, and then their values.
/// wait() makes the next eight readable and returns a reader of them, next() says that they have been read. Rows that no
/// query sees may hold anything.
template <class Source>
concept IsRowSource = requires(Source& source) {
  source.wait();
  source.next();
};

/// Shared memory that a warp has, in 16-byte vectors: the query, the weights of a leaf, and the leaf that waits.
template <class Warp>
inline constexpr int kWarpVectors = (Warp::kRowElements + static_cast<int>(kLeafKeys)) / 4 + Waiting<Warp>::kVectors;

/// The pass of a warp over a range of leaves, for one query.
/// @param target where states go @param memory [kWarpVectors] of this warp
template <IsScalarWarp Warp, class Leaves, IsRowSource Source>
__device__ __forceinline__ void accumulate_keys(const DecodeParams& params, std::int64_t kv_head, std::int64_t r,
                                                const KeySteps<Leaves>& steps, const UnitTarget& target, Source& source,
                                                Shared<Bytes16> memory) {
  constexpr float kNotSeen = -std::numeric_limits<float>::infinity();
  const int lane = static_cast<int>(threadIdx.x % kWarp), key = lane / 4;
  const Scales scale = scales_of<typename Warp::T>(params, kv_head);
  const Shared<float> q = shared_as<float>(memory), w = q + Warp::kRowElements;
  const auto query = [&](int i) {
    if (params.wide_queries) return load_once(params.query<float>(kv_head, r) + i);
    return widen(load_once(params.query<typename Warp::T>(kv_head, r) + i));
  };
  __syncwarp();
  TREE_ATTN_LOOP
  for (int i = lane; i < Warp::kRowElements; i += kWarp) q[i] = i < params.d_h ? multiply(scale.query, query(i)) : 0.0f;
  __syncwarp();

  UnitForest<Warp, Leaves> forest(target, steps.leaves(), lane,
                                  memory + (Warp::kRowElements + static_cast<int>(kLeafKeys)) / 4);
  TREE_ATTN_LOOP
  for (int i = 0; i < steps.leaves().n_leaves(); ++i) {
    const int n_steps = steps.of_leaf(i);
    __syncwarp();  // all lanes have read the weights of the leaf before
    LaneState<Warp::kElements> leaf;
    float shift = kNotSeen;
    TREE_ATTN_LOOP
    for (int step = 0; step < kStepsPerLeaf; ++step) {
      float s = kNotSeen;
      if (step < n_steps) {
        const bool has_key = (steps.valid(i * kStepsPerLeaf + step) >> key & 1) != 0;
        s = score_of_eight<Warp>(q, source.wait(), params.d_h, has_key, scale.score, params.in_pairs);
        if (params.softcap) s = params.softcap(s);
        if (!has_key) s = kNotSeen;
        shift = std::fmax(shift, key_shift(s));
        source.next();
      }
      if (lane % 4 == 0) w[step * kKeysPerStep + key] = s;
    }
    const bool all_seen = weigh_leaf(w, shift, leaf);

    LeafSums<Warp::kElements> sums;
    TREE_ATTN_LOOP
    for (int step = 0; step < kStepsPerLeaf; ++step) {
      if (step < n_steps) {
        sum_of_eight<Warp>(w + step * kKeysPerStep, source.wait(), params.d_v, all_seen, leaf.n);
        source.next();
      } else {
        TREE_ATTN_UNROLL
        for (float& x : leaf.n) x = -0.0f;
      }
      sums.add(step, leaf.n);
    }
    forest.push(i, leaf);
  }
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
