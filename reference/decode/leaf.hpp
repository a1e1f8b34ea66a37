// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A leaf of 64 keys: scores, weights of one shift, and their sums over a balanced tree (eq. (7), section 5).
///
/// All keys of a leaf are brought to one shift, the largest, before anything is added:
///
///     e = max_a ceil(s_a),   w_a = 2^(s_a - e),   D = sum_a w_a,   n = sum_a w_a v_a,
///
/// with both sums over the tree ((0 + 1) + (2 + 3)) + ... of the key's positions. These are the bits of merging key by key,
/// because multiplying by a power of two commutes with rounding. docs/5-tree.md has the proof and the exceptions: products
/// and weights below the smallest normal number, and sums that overflow.
#pragma once

#include "reference/decode/lanes.hpp"
#include "reference/state/subtree.hpp"

namespace tree_attn::lanes {

/// Keys of a leaf, as the bound of loops.
inline constexpr int kKeys = static_cast<int>(kLeafKeys);

/// The rows of a leaf. Positions past the last key read the last row again, and have a weight of none().
struct Rows {
  const std::byte* first;
  std::int64_t stride, last;
  TREE_ATTN_INLINE const std::byte* operator[](std::int64_t a) const { return first + (a < last ? a : last) * stride; }
};

/// What is requested of memory when an element is loaded, so that it is in the second level of the cache when its turn
/// comes: the element kRowAhead bytes after it, for F32 rows of one query that come from memory and not from a cache; or
/// those kGroupAhead and kGroupAgain bytes after it, for rows that several queries share.
///
/// The hardware prefetcher alone does not keep up with the loops over F32 rows, nor with those over several queries. A core
/// drops requests while many are open, so the loops over several queries, which compute long enough to afford it, ask twice.
/// Rows of 16 bits for one query are read as fast without requests, and rows in the third level of the cache faster. The
/// distances were chosen on a Zen 4; requests for the first level made it slower.
enum class Ahead { kNone, kRow, kGroup };
inline constexpr int kRowAhead = 2048, kGroupAhead = 20480, kGroupAgain = 8192;

/// Length of a row in pairs: kPairs if it is that many, known to the compiler; 0 if it is any number, the last in part.
template <int kPairs>
struct Axis {
  std::int64_t size;  ///< elements
  TREE_ATTN_INLINE std::int64_t pairs() const { return kPairs > 0 ? kPairs : (size + kPairElements - 1) / kPairElements; }
  template <class T, Ahead kAhead = Ahead::kNone>
  TREE_ATTN_INLINE Pair load(const std::byte* row, std::int64_t p) const {
    const std::byte* const from = row + p * kPairBytes<T>;
    if constexpr (kAhead == Ahead::kRow) request(from, kRowAhead, kPairBytes<T>);
    if constexpr (kAhead == Ahead::kGroup)
      request(from, kGroupAhead, kPairBytes<T>), request(from, kGroupAgain, kPairBytes<T>);
    const std::int64_t rest = size - p * kPairElements;
    return kPairs > 0 || rest >= kPairElements ? load_pair<T>(from) : load_pair<T>(from, rest);
  }
};

/// Sixteen -0, the element that changes no sum.
TREE_ATTN_INLINE Lanes none() {
  Lanes x;
  each<kParts>([&]<int i>() TREE_ATTN_LAMBDA { x.part[i] = all(-0.0f); });
  return x;
}
/// Whether a weight is -0, that of a key that is not seen. Its value is ignored and counts as -0, which changes no sum.
TREE_ATTN_INLINE bool is_none(float weight) { return __builtin_bit_cast(std::uint32_t, weight) == 0x80000000; }

/// Pair p of a packed query.
TREE_ATTN_INLINE Pair load_packed(const float* q, std::int64_t p) {
  return {load(q + p * kPairElements), load(q + p * kPairElements + kLanes)};
}

/// sum += k q, lane by lane; with kFirst sum = k q.
template <bool kFirst>
TREE_ATTN_INLINE void add_product(Lanes& sum, Pair k, Pair q) {
  sum = kFirst ? k.x * q.x : sum + k.x * q.x;
  sum = sum + k.y * q.y;
}

/// s_a = scale q.k_a of one query, sixteen keys at a time, rows in the order of memory.
/// @param[in] q packed query
/// @param[out] s [64]
template <class T, Ahead kAhead, int kPairs>
TREE_ATTN_INLINE void scores_of_one(Rows keys, Axis<kPairs> d_h, const float* q, float scale, float* s) {
  Pair held[kPairs + 1];  // the query, in registers where they suffice
  each<kPairs>([&]<int p>() TREE_ATTN_LAMBDA { held[p] = load_packed(q, p); });
  for (int a = 0; a < kKeys; a += 16) {
    Lanes products[16];
    each<16>([&]<int r>() TREE_ATTN_LAMBDA {
      const std::byte* const key = keys[a + r];
      Lanes& product = products[r];
      if constexpr (kPairs > 0) {
        each<kPairs>([&]<int p>()
                         TREE_ATTN_LAMBDA { add_product<p == 0>(product, d_h.template load<T, kAhead>(key, p), held[p]); });
      } else {
        add_product<true>(product, d_h.template load<T>(key, 0), load_packed(q, 0));
        for (std::int64_t p = 1; p < d_h.pairs(); ++p)
          add_product<false>(product, d_h.template load<T>(key, p), load_packed(q, p));
      }
      in_order(product);
    });
    sum_each(products, scale, s + a);
  }
}

/// The same for kQueries queries that share the keys: each element of a key is loaded and widened once for all of them.
/// @param s_stride floats from the scores of one query to those of the next
template <class T, int kQueries, int kPairs>
TREE_ATTN_INLINE void scores_of_several(Rows keys, Axis<kPairs> d_h, const float* q, std::int64_t q_stride, float scale,
                                        float* s, std::int64_t s_stride) {
  constexpr int kAtOnce = 16 / kQueries;
  for (int a = 0; a < kKeys; a += kAtOnce) {
    Lanes products[16];
    each<kAtOnce>([&]<int r>() TREE_ATTN_LAMBDA {
      const std::byte* const key = keys[a + r];
      const auto add_pair = [&]<bool kFirst>(std::int64_t p) TREE_ATTN_LAMBDA {
        const Pair k = d_h.template load<T, Ahead::kGroup>(key, p);
        each<kQueries>([&]<int j>() TREE_ATTN_LAMBDA {
          add_product<kFirst>(products[j * kAtOnce + r], k, load_packed(q + j * q_stride, p));
        });
        in_order();
      };
      add_pair.template operator()<true>(0);
      for (std::int64_t p = 1; p < d_h.pairs(); ++p) add_pair.template operator()<false>(p);
    });
    float sums[16];
    sum_each(products, scale, sums);
    for (int j = 0; j < kQueries; ++j) __builtin_memcpy(s + j * s_stride + a, sums + j * kAtOnce, kAtOnce * sizeof(float));
  }
}

/// What the weights of a leaf have in common.
struct LeafShift {
  float shift;  ///< e
  bool all_seen;
};

/// Turns the scores of a leaf into weights 2^(s_a - e), and none() where s_a = -inf; a NaN stays NaN.
TREE_ATTN_INLINE LeafShift weigh(float* s) {
  const Part unseen = all(-__builtin_inff());
  Part shifts = unseen;
  PartBits any_unseen{};
  for (int a = 0; a < kKeys; a += kPartLanes) {
    const Part x = load_vector<Part>(s + a), shift = ceil(x);
    shifts = select(shift > shifts, shift, shifts);  // no NaN wins
    any_unseen |= x == unseen;
  }
  const float e = largest(shifts);
  const bool all_seen = !any(any_unseen);
  for (int a = 0; a < kKeys; a += kPartLanes) {
    const Part x = load_vector<Part>(s + a), shift = ceil(x);
    const Part weight = select(x == unseen, all(-0.0f), exp2_fraction(x - shift) * pow2(shift - e));
    __builtin_memcpy(s + a, &weight, sizeof weight);
  }
  return {e, all_seen};
}

/// D: the sum of the weights over the tree; +0 if no key is seen.
TREE_ATTN_INLINE float sum_of_weights(const float* w) {
  Part sums[kKeys / kPartLanes];
  __builtin_memcpy(sums, w, sizeof sums);
  for (int n = kKeys / kPartLanes / 2; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) sums[i] = add_neighbours(sums[2 * i], sums[2 * i + 1]);
  }
  for (int n = kPartLanes; n > 1; n /= 2) sums[0] = add_neighbours(sums[0], sums[0]);
  return sums[0][0] + 0.0f;
}

/// kPairs pairs of n = sum_a w_a v_a for one query. Rows are read in the order of memory. The three lower levels of the tree
/// stay in registers, the three upper ones in the first level of the cache.
/// @pre all keys are seen
/// @param[in] v rows, from the first of the pairs on
/// @param[out] n [kPairs] pairs
template <class T, Ahead kAhead, int kPairs>
TREE_ATTN_INLINE void weighted_sum_of_one(Rows v, const float* w, float* n) {
  struct Row {
    Lanes x[2 * kPairs];
  };
  const Axis<kPairs> axis{kPairs * kPairElements};
  const auto add_row = [&]<bool kFirst>(int a, Row& sum) TREE_ATTN_LAMBDA {
    const std::byte* const row = v[a];
    const float weight = w[a];
    each<kPairs>([&]<int p>() TREE_ATTN_LAMBDA {
      Pair pair = axis.template load<T, kAhead>(row, p);
      if constexpr (p == 0 && sizeof(T) == sizeof(float)) in_order(pair.x);  // or GCC loads it last
      Lanes &x = sum.x[2 * p], &y = sum.x[2 * p + 1];
      x = kFirst ? weight * pair.x : x + weight * pair.x;
      y = kFirst ? weight * pair.y : y + weight * pair.y;
    });
    each<2 * kPairs>([&]<int c>() TREE_ATTN_LAMBDA { in_order(sum.x[c]); });
  };
  const auto two_rows = [&](int a, Row& sum) TREE_ATTN_LAMBDA {
    add_row.template operator()<true>(a, sum);
    add_row.template operator()<false>(a + 1, sum);
  };
  const auto add = [](Row& sum, const Row& other) TREE_ATTN_LAMBDA {
    each<2 * kPairs>([&]<int c>() TREE_ATTN_LAMBDA { sum.x[c] = sum.x[c] + other.x[c]; });
  };
  alignas(64) float waiting[3][kPairs * kPairElements];
  for (int block = 0; block < kKeys / 8; ++block) {
    Row sum, right, third;
    two_rows(8 * block, sum), two_rows(8 * block + 2, right), add(sum, right);
    two_rows(8 * block + 4, right), two_rows(8 * block + 6, third), add(right, third), add(sum, right);
    int level = 0;
    for (int i = block; i & 1; i >>= 1, ++level) {
      each<2 * kPairs>([&]<int c>() TREE_ATTN_LAMBDA { sum.x[c] = load(waiting[level] + c * kLanes) + sum.x[c]; });
    }
    float* const to = level == 3 ? n : waiting[level];
    each<2 * kPairs>([&]<int c>() TREE_ATTN_LAMBDA { store(to + c * kLanes, sum.x[c]); });
  }
}

/// Queries whose sums share a pass over the values.
inline constexpr std::int64_t kGroup = 4;

/// The first kPairs pairs of n = sum_a w_a v_a for up to kGroup queries, each element loaded and widened once. Rows are read
/// in the order of memory, two at a time; above their sums, the tree is in the first level of the cache.
/// @tparam kPlain whether all queries see all keys, and lift = 1
/// @param[in] v rows, from the first of the pairs on
/// @param size elements of a row from there on; fewer than kPairs pairs only if that is one
/// @param[in] w weights [n_queries][64], w_stride floats from one query to the next
/// @param lift multiplies v: 1, or 2^-kLift
/// @param[out] n [n_queries] rows of which the pairs are the first, n_stride floats from one query to the next
template <class T, bool kPlain, int kPairs>
TREE_ATTN_INLINE void weighted_sums(Rows v, std::int64_t size, std::int64_t n_queries, const float* w, std::int64_t w_stride,
                                    float lift, float* n, std::int64_t n_stride) {
  constexpr int kLevels = 5, kRow = 2 * kPairs;  // levels of the tree above two keys; lanes of a row
  static_assert(kKeys == 2 << kLevels);
  const Axis<(kPairs > 1 ? kPairs : 0)> axis{size};
  const auto load_row = [&](std::int64_t a, Lanes(&x)[kRow]) TREE_ATTN_LAMBDA {
    const std::byte* const row = v[a];
    each<kPairs>([&]<int p>() TREE_ATTN_LAMBDA {
      const Pair pair = axis.template load<T, Ahead::kGroup>(row, p);
      x[2 * p] = pair.x, x[2 * p + 1] = pair.y;
    });
    if constexpr (sizeof(T) == sizeof(float)) each<kRow>([&]<int c>() TREE_ATTN_LAMBDA { in_order(x[c]); });
  };
  const auto product = [&](float weight, const Lanes& x) TREE_ATTN_LAMBDA {
    if constexpr (kPlain) return weight * x;
    return is_none(weight) ? none() : weight * (lift * x);
  };
  alignas(64) float waiting[kLevels][kGroup][kPairs * kPairElements];
  for (int i = 0; i < kKeys / 2; ++i) {
    Lanes even[kRow], odd[kRow];
    load_row(2 * i, even), load_row(2 * i + 1, odd);
    for (std::int64_t j = 0; j < n_queries; ++j) {
      const float* const weights = w + j * w_stride + 2 * i;
      Lanes sum[kRow];
      each<kRow>([&]<int c>() TREE_ATTN_LAMBDA { sum[c] = product(weights[0], even[c]) + product(weights[1], odd[c]); });
      int level = 0;
      for (int k = i; k & 1; k >>= 1, ++level)
        each<kRow>([&]<int c>() TREE_ATTN_LAMBDA { sum[c] = load(waiting[level][j] + c * kLanes) + sum[c]; });
      float* const to = level == kLevels ? n + j * n_stride : waiting[level][j];
      each<kRow>([&]<int c>() TREE_ATTN_LAMBDA { store(to + c * kLanes, sum[c]); });
    }
  }
}

}  // namespace tree_attn::lanes
