// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A leaf of 64 keys: scores, weights of one shift, and their sums over a balanced tree (eq. (7), section 5).
///
/// All keys of a leaf are brought to one shift, the largest, before anything is added:
///
///     e = max_a ceil(s_a),   w_a = 2^(s_a - e),   D = sum_a w_a,   n = sum_a w_a v_a,
///
/// with both sums over the tree ((0 + 1) + (2 + 3)) + ... of the key's positions. These are the bits of merging key by key,
/// because multiplying by a power of two commutes with rounding. docs/II.2-tree.md has the proof and the exceptions:
/// products and weights below the smallest normal number, and sums that overflow.
#pragma once

#include "tree_attn/reference/cpu/lanes.hpp"
#include "tree_attn/reference/cpu/leaf_kernel.hpp"
#include "tree_attn/reference/state/subtree.hpp"

namespace tree_attn::lanes {

/// Keys of a leaf, as the bound of loops.
inline constexpr int kKeys = static_cast<int>(kLeafKeys);

/// The rows of a leaf. Positions past the last key read the last row again, and have a weight of none().
struct Rows {
  const std::byte* first;
  std::int64_t stride, last;
  TREE_ATTN_INLINE const std::byte* operator[](std::int64_t a) const { return first + (a < last ? a : last) * stride; }
  /// The row after row a, which is at `row`.
  TREE_ATTN_INLINE const std::byte* after(const std::byte* row, std::int64_t a) const {
    return row + (a < last ? stride : 0);
  }
};

/// Requests rows ahead of an element that is being loaded, so that they are in the cache when their turn comes.
///
/// The hardware prefetchers alone keep up with these loops on some processors, and on others not. A core drops requests
/// while many are open, so the loops over several queries, which compute long enough to afford it, ask twice. The distances
/// for the first level were chosen on a Zen 5, those for the second on a Zen 4.
/// @tparam T type of the rows
/// @tparam kShared whether several queries share the rows
template <class T, Requests kRequests, bool kShared>
TREE_ATTN_INLINE void request_ahead(const std::byte* from, std::int64_t n_bytes) {
  if constexpr (kRequests == Requests::kFirstLevel) {
    if constexpr (kShared) request<1>(from, 12288, n_bytes);
    request<1>(from, !kShared && sizeof(T) >= sizeof(float) ? 3072 : 6144, n_bytes);
  } else if constexpr (kRequests == Requests::kSecondLevel) {
    if constexpr (kShared) request<2>(from, 20480, n_bytes);
    request<2>(from, kShared ? 8192 : 2048, n_bytes);
  }
}

/// Length of a row in pairs: kPairs if it is that many, known to the compiler; 0 if it is any number, the last in part.
template <int kPairs>
struct Axis {
  std::int64_t size;  ///< elements
  TREE_ATTN_INLINE std::int64_t pairs() const { return kPairs > 0 ? kPairs : (size + kPairElements - 1) / kPairElements; }
  template <class T, Requests kRequests, bool kShared>
  TREE_ATTN_INLINE Pair load(const std::byte* row, std::int64_t p) const {
    const std::byte* const from = row + p * kPairBytes<T>;
    request_ahead<T, kRequests, kShared>(from, kPairBytes<T>);
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

/// s_a = scale q.k_a of kQueries queries that share the keys, sixteen products at a time: each element of a key is loaded
/// and widened once for these queries.
///
/// Rows are read one after the other, by the same few instructions: the hardware prefetchers learn where an instruction
/// reads next. With sixteen rows unrolled they do not: without requests a Zen 5 took 1.6 times as long for BF16. Where
/// several queries share rows of 16 bits, arithmetic takes longer than reading: 16 / kQueries rows are taken at a time, and
/// each element of a query is loaded once for all of these.
/// @param[in] q packed queries, q_stride floats from one to the next
/// @param[out] s [kQueries][64], s_stride floats from the scores of one query to those of the next
template <class T, Requests kRequests, int kQueries, int kPairs>
TREE_ATTN_INLINE void scores(Rows keys, Axis<kPairs> d_h, const float* q, std::int64_t q_stride, float scale, float* s,
                             std::int64_t s_stride) {
  constexpr int kAtOnce = 16 / kQueries, kRows = kQueries == 1 || sizeof(T) >= sizeof(float) ? 1 : kAtOnce;
  constexpr int kHeld = kQueries == 1 ? kPairs : 0;  // pairs of the query that stay in registers
  Pair held[kHeld + 1];                              // one more, since an array may not be empty
  each<kHeld>([&]<int p>() TREE_ATTN_LAMBDA { held[p] = load_packed(q, p); });
  const std::byte* next = keys.first;
  for (int a = 0; a < kKeys; a += kAtOnce) {
    Lanes products[16];  // in memory, since r is not a constant
#pragma GCC unroll 1
    for (int r = 0; r < kAtOnce; r += kRows) {
      // With addresses that advance, groups of 16 bits are slower, and single queries are faster.
      const std::byte* row[kRows];
      for (int i = 0; i < kRows; ++i) row[i] = kQueries == 1 ? next : keys[a + r + i];
      if constexpr (kQueries == 1) next = keys.after(next, a + r);
      Lanes sums[kRows][kQueries];
      const auto add_pair = [&]<bool kFirst>(std::int64_t p) TREE_ATTN_LAMBDA {
        Pair k[kRows];
        each<kRows>([&]<int i>() TREE_ATTN_LAMBDA { k[i] = d_h.template load<T, kRequests, (kQueries > 1)>(row[i], p); });
        each<kQueries>([&]<int j>() TREE_ATTN_LAMBDA {
          const Pair of_query = kHeld > 0 ? held[p] : load_packed(q + j * q_stride, p);
          each<kRows>([&]<int i>() TREE_ATTN_LAMBDA { add_product<kFirst>(sums[i][j], k[i], of_query); });
        });
      };
      add_pair.template operator()<true>(0);
      if constexpr (kPairs > 0) {
        each<kPairs - 1>([&]<int p>() TREE_ATTN_LAMBDA { add_pair.template operator()<false>(p + 1); });
      } else {
        for (std::int64_t p = 1; p < d_h.pairs(); ++p) add_pair.template operator()<false>(p);
      }
      each<kQueries>([&]<int j>() TREE_ATTN_LAMBDA {
        each<kRows>([&]<int i>() TREE_ATTN_LAMBDA { products[j * kAtOnce + r + i] = sums[i][j]; });
      });
    }
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

/// The shift of the scores of a leaf; it is no NaN.
TREE_ATTN_INLINE LeafShift shift_of(const float* s) {
  const Part unseen = all(-__builtin_inff());
  Part shifts = unseen;
  PartBits any_unseen{};
  for (int a = 0; a < kKeys; a += kPartLanes) {
    const Part x = load_vector<Part>(s + a), shift = ceil(x);
    shifts = select(shift > shifts, shift, shifts);  // no NaN wins
    any_unseen |= x == unseen;
  }
  return {largest(shifts), !any(any_unseen)};
}

/// Turns the scores of a leaf into weights 2^(s_a - e), and none() where s_a = -inf; a NaN stays NaN.
TREE_ATTN_INLINE void weigh(float* s, float e) {
  const Part unseen = all(-__builtin_inff());
  for (int a = 0; a < kKeys; a += kPartLanes) {
    const Part x = load_vector<Part>(s + a), shift = ceil(x);
    const Part weight = select(x == unseen, all(-0.0f), exp2_fraction(x - shift) * pow2(shift - e));
    __builtin_memcpy(s + a, &weight, sizeof weight);
  }
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

/// Queries whose sums share a pass over the values.
inline constexpr std::int64_t kGroup = 4;

/// The first kPairs pairs of n = sum_a w_a v_a for up to kGroup queries, each element loaded and widened once. Rows are read
/// in the order of memory. Two of them are added in registers; partial sums of the levels above wait in memory, in the first
/// level of the cache.
/// @tparam kShared whether there are several queries
/// @tparam kAll whether all queries see all keys
/// @param[in] v rows, from the first of the pairs on
/// @param size elements of a row from there on; fewer than kPairs pairs only if that is one
/// @param[in] w weights [n_queries][64], w_stride floats from one query to the next
/// @param[out] n [n_queries] rows of which the pairs are the first, n_stride floats from one query to the next
template <class T, Requests kRequests, bool kShared, bool kAll, int kPairs>
TREE_ATTN_INLINE void weighted_sums(Rows v, std::int64_t size, std::int64_t n_queries, const float* w, std::int64_t w_stride,
                                    float* n, std::int64_t n_stride) {
  constexpr int kLevels = 5, kRow = 2 * kPairs;  // levels of the tree above two keys; lanes of a row
  static_assert(kKeys == 2 << kLevels);
  const Axis<(kPairs > 1 ? kPairs : 0)> axis{size};
  const std::byte* next = v.first;
  const auto load_row = [&](std::int64_t a, Lanes(&x)[kRow]) TREE_ATTN_LAMBDA {
    const std::byte* const row = kShared ? v[a] : next;  // as in scores()
    if constexpr (!kShared) next = v.after(next, a);
    each<kPairs>([&]<int p>() TREE_ATTN_LAMBDA {
      const Pair pair = axis.template load<T, kRequests, kShared>(row, p);
      x[2 * p] = pair.x, x[2 * p + 1] = pair.y;
    });
    if constexpr (sizeof(T) == sizeof(float)) each<kRow>([&]<int c>() TREE_ATTN_LAMBDA { in_order(x[c]); });
  };
  const auto product = [&](float weight, const Lanes& x) TREE_ATTN_LAMBDA {
    if constexpr (kAll) return weight * x;
    return is_none(weight) ? none() : weight * x;
  };
  alignas(64) float waiting[kLevels][kGroup][kPairs * kPairElements];
#pragma GCC unroll 1
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
