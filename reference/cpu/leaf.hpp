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

#include "reference/cpu/lanes.hpp"
#include "reference/cpu/leaf_kernel.hpp"
#include "reference/state/subtree.hpp"

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
  /// The rows from element i on.
  template <class T>
  TREE_ATTN_INLINE Rows from(std::int64_t i) const {
    return {first + i * static_cast<std::int64_t>(sizeof(T)), stride, last};
  }
};

/// Requests rows ahead of an element that is being loaded, so that they are in the cache when their turn comes.
///
/// The hardware prefetchers alone keep up with these loops on some processors, and on others not. A core drops requests
/// while many are open, so the loops over several queries, which compute long enough to afford it, ask twice. The
/// levels and distances were chosen on a Zen 4, for several queries also and for 16 bits only on an Intel Xeon: there one
/// query of 16 bits takes 1.2 to 1.4 times as long from memory without, on a Zen 4 as long or up to 5 % less. Not requested
/// are rows of F64, whose speed does not matter, and of F8_E4M3, whose conversions take longer.
/// @tparam kShared whether several queries share the rows
template <class T, bool kShared>
TREE_ATTN_INLINE void request_ahead(const std::byte* from) {
  if constexpr (sizeof(T) == sizeof(float) || sizeof(T) == sizeof(Half)) {
    request<2>(from, kShared ? 16384 : sizeof(T) == sizeof(float) ? 2048 : 4096, kPairBytes<T>);
    if constexpr (kShared) request<1>(from, 4096, kPairBytes<T>);
  }
}

/// Pair p of a row that is read for one query. @param rest elements of the row from there on
template <class T>
TREE_ATTN_INLINE Pair load_once(const std::byte* row, std::int64_t p, std::int64_t rest) {
  const std::byte* const from = row + p * kPairBytes<T>;
  request_ahead<T, false>(from);
  return rest >= kPairElements ? load_pair<T>(from) : load_pair<T>(from, rest);
}

/// Tests for the weight -0, which marks a key that is not seen. The value of that key is ignored and counts as -0, which
/// changes no sum.
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

/// s_a = scale q.k_a of one query, sixteen products at a time.
///
/// Rows are read one after the other, by the same few instructions: the hardware prefetchers learn where an instruction
/// reads next. With sixteen rows unrolled they do not: without requests a Zen 5 took 1.6 times as long for BF16.
/// @tparam kPairs pairs of a row, if that is known to the compiler; else 0
/// @param[in] q a packed query
/// @param[out] s [64]
template <class T, int kPairs>
TREE_ATTN_INLINE void scores(Rows keys, std::int64_t d_h, const float* q, float scale, float* s) {
  Pair held[kPairs + 1];  // of the query; one more, since an array may not be empty
  each<kPairs>([&]<int p>() TREE_ATTN_LAMBDA { held[p] = load_packed(q, p); });
  const std::byte* next = keys.first;
  for (int a = 0; a < kKeys; a += 16) {
    Lanes products[16];  // in memory, since r is not a constant
#pragma GCC unroll 1
    for (int r = 0; r < 16; ++r) {
      const std::byte* const row = next;
      next = keys.after(next, a + r);
      Lanes sum;
      if constexpr (kPairs > 0) {
        each<kPairs>([&]<int p>()
                         TREE_ATTN_LAMBDA { add_product<p == 0>(sum, load_once<T>(row, p, kPairElements), held[p]); });
      } else {
        add_product<true>(sum, load_once<T>(row, 0, d_h), load_packed(q, 0));
        for (std::int64_t p = 1; p * kPairElements < d_h; ++p)
          add_product<false>(sum, load_once<T>(row, p, d_h - p * kPairElements), load_packed(q, p));
      }
      products[r] = sum;
    }
    sum_each(products, scale, s + a);
  }
}

/// Keys whose products with some queries are summed together.
inline constexpr int kBlock = static_cast<int>(kBlockRows);
/// s_a of kQueries queries that share the keys a .. a + kBlock - 1: each element of a key is loaded and widened once. All
/// sums are in registers if there are enough, so that each element of a query is loaded once too.
/// @param[in] q packed queries, q_stride floats from one to the next
/// @param[out] s [kQueries][kBlock], s_stride floats from the scores of one query to those of the next
/// @param[out] block [kBlock][padded d_h] the keys, widened, for other queries; null if there are none, or they are F32
/// @tparam kRequests whether rows are requested ahead: not those that other queries have read
template <class T, bool kRequests, int kQueries>
TREE_ATTN_INLINE void scores_of_block(Rows keys, std::int64_t a, std::int64_t d_h, const float* q, std::int64_t q_stride,
                                      float scale, float* s, std::int64_t s_stride, float* block) {
  constexpr int kRows = kPartLanes == kLanes ? 4 : 1;
  const std::int64_t n_whole = d_h / kPairElements;
  const std::byte* next = keys[a];
  Lanes products[kQueries][kBlock];  // in memory, since `first` is not a constant
#pragma GCC unroll 1
  for (int first = 0; first < kBlock; first += kRows) {
    const std::byte* row[kRows];
    std::byte last_pair[kRows][kPairBytes<T>];
    Lanes sums[kRows][kQueries];
    each<kRows>([&]<int r>() TREE_ATTN_LAMBDA { row[r] = next, next = keys.after(next, a + first + r); });
    const auto add_pair = [&]<bool kFirst>(std::int64_t p) TREE_ATTN_LAMBDA {
      if (p == n_whole) {  // where rows end inside a pair; load_pair(row, n) in the loop made it a sixth slower
        each<kRows>([&]<int r>() TREE_ATTN_LAMBDA {
          copy_rest<T>(row[r], d_h % kPairElements, last_pair[r]);
          row[r] = last_pair[r];
        });
      }
      Pair k[kRows];
      each<kRows>([&]<int r>() TREE_ATTN_LAMBDA {
        if constexpr (kRequests) request_ahead<T, true>(row[r]);
        k[r] = load_pair<T>(row[r]);
        row[r] += kPairBytes<T>;
      });
      if (DTypeTraits<T>::kDType != DType::F32 && block != nullptr) {
        float* const to = block + first * q_stride + p * kPairElements;
        each<kRows>([&]<int r>()
                        TREE_ATTN_LAMBDA { store(to + r * q_stride, k[r].x), store(to + r * q_stride + kLanes, k[r].y); });
      }
      each<kQueries>([&]<int j>() TREE_ATTN_LAMBDA {
        const Pair of_query = load_packed(q + j * q_stride, p);
        each<kRows>([&]<int r>() TREE_ATTN_LAMBDA { add_product<kFirst>(sums[r][j], k[r], of_query); });
      });
    };
    add_pair.template operator()<true>(0);
    for (std::int64_t p = 1; p * kPairElements < d_h; ++p) add_pair.template operator()<false>(p);
    each<kQueries>([&]<int j>() TREE_ATTN_LAMBDA {
      each<kRows>([&]<int r>() TREE_ATTN_LAMBDA { products[j][first + r] = sums[r][j]; });
    });
  }
#pragma GCC unroll 1
  for (int j = 0; j < kQueries; ++j) sum_each(products[j], scale, s + j * s_stride);
}

/// SoftCap of mask.hpp, for the scores of a leaf. @param limit, inverse log2(e) c and its inverse
TREE_ATTN_INLINE void soft_cap(float* s, float limit, float inverse) {
  for (int a = 0; a < kKeys; a += kPartLanes) {
    const Part score = load_vector<Part>(s + a);
    const PartBits sign = (PartBits)score & static_cast<std::int32_t>(0x80000000);
    const Part x = (Part)((PartBits)score ^ sign) * inverse, z = x * x, product = x * 0x1.715476p+1f;
    const Part y = select(product > 64.0f, all(64), product), shift = ceil(-y), u = exp2_fraction(-y - shift) * pow2(shift);
    Part series = all(0x1.664f48p-6f);
    series = series * z - 0x1.ba1ba2p-5f;
    series = series * z + 0x1.111112p-3f;
    series = series * z - 0x1.555556p-2f;
    series = series * z + 1.0f;
    const Part capped = limit * select(x < 0.17f, series * x, (1.0f - u) / (1.0f + u));
    const PartBits bits = (PartBits)capped | sign;
    __builtin_memcpy(s + a, &bits, sizeof bits);
  }
}

/// Shift of a leaf, and whether its queries see all of its keys.
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

/// The sum of the products w_a v_a of kRows keys over their tree.
/// @tparam kAll whether all queries see all keys
template <bool kAll, int kRows>
TREE_ATTN_INLINE Part sum_of_products(const Part* w, const Part* v) {
  if constexpr (kRows > 1)
    return sum_of_products<kAll, kRows / 2>(w, v) + sum_of_products<kAll, kRows / 2>(w + kRows / 2, v + kRows / 2);
  else if constexpr (kAll)
    return *w * *v;
  else
    return is_none((*w)[0]) ? all(-0.0f) : *w * *v;
}

/// Levels of the tree of a leaf above kRows keys.
template <int kRows>
inline constexpr int kLevels = std::bit_width(static_cast<unsigned>(kKeys / kRows)) - 1;

/// kPairs pairs of n = sum_a w_a v_a for one query that sees all keys. Rows are read in the order of memory.
/// @param[in] v rows, from the first of the pairs on
/// @param rest elements of a row from there on; less than kPairs pairs only if that is one
/// @param[in] w weights [64]
/// @param[out] n the first of the pairs
template <class T, int kPairs>
TREE_ATTN_INLINE void weighted_sum(Rows v, std::int64_t rest, const float* w, float* n) {
  constexpr int kColumns = 2 * kPairs;
  alignas(64) float waiting[kLevels<2>][kPairs * kPairElements];
  const std::byte* next = v.first;
#pragma GCC unroll 1
  for (int i = 0; i < kKeys / 2; ++i) {
    Lanes x[kColumns][2], sum[kColumns];
    each<2>([&]<int r>() TREE_ATTN_LAMBDA {
      const std::byte* const row = next;
      next = v.after(next, 2 * i + r);
      each<kPairs>([&]<int p>() TREE_ATTN_LAMBDA {
        const Pair pair = load_once<T>(row, p, kPairs > 1 ? kPairElements : rest);
        x[2 * p][r] = pair.x, x[2 * p + 1][r] = pair.y;
      });
      if constexpr (sizeof(T) == sizeof(float)) each<kColumns>([&]<int c>() TREE_ATTN_LAMBDA { in_order(x[c][r]); });
    });
    each<kColumns>([&]<int c>() TREE_ATTN_LAMBDA { sum[c] = w[2 * i] * x[c][0] + w[2 * i + 1] * x[c][1]; });
    int level = 0;
    for (int k = i; k & 1; k >>= 1, ++level)
      each<kColumns>([&]<int c>() TREE_ATTN_LAMBDA { sum[c] = load(waiting[level] + c * kLanes) + sum[c]; });
    float* const to = level == kLevels<2> ? n : waiting[level];
    each<kColumns>([&]<int c>() TREE_ATTN_LAMBDA { store(to + c * kLanes, sum[c]); });
  }
}

/// Queries whose sums share a pass over the values, and elements of a value in a pass.
inline constexpr std::int64_t kGroup = 8, kPassElements = 4 * kPairElements;
/// Keys, and queries at most, whose weights are in registers while the values of these keys are read.
inline constexpr int kHeld = 4;
/// Sums of a group over 4, 8, 16 and 32 keys, which wait for the sums of as many keys to their right.
using GroupSums = float[kLevels<kHeld>][kGroup][kPassElements];

/// Sums w_a v_a over the keys a .. a + kHeld - 1, for kQueries queries. Where these keys end a larger subtree, the sum over
/// its left half, which waits in `waiting`, is added on the left.
/// @param[in] w weights of these keys [kQueries][kHeld], w_stride floats from one query to the next
/// @param waiting [kLevels][kQueries][kPassElements]
/// @param[out] n sums over all keys of the leaf [kQueries][n_pairs pairs], written with the last keys, n_stride floats from
/// one query to the next
template <class T, bool kAll, int kQueries>
TREE_ATTN_INLINE void weighted_sums(Rows v, std::int64_t a, std::int64_t n_pairs, const float* w, std::int64_t w_stride,
                                    float* waiting, float* n, std::int64_t n_stride) {
  const std::byte* row[kHeld];
  Part weights[kQueries][kHeld];
  row[0] = v[a];
  each<kHeld>([&]<int r>() TREE_ATTN_LAMBDA {
    if constexpr (r > 0) row[r] = v.after(row[r - 1], a + r - 1);
    each<kQueries>([&]<int j>() TREE_ATTN_LAMBDA { weights[j][r] = all(w[j * w_stride + r]); });
  });
  constexpr std::int64_t kLevel = kGroup * kPassElements;
  const int n_levels = __builtin_ctz(static_cast<unsigned>(a / kHeld) + 1);
  const bool is_last = a + kHeld == kKeys;
  float* to = is_last ? n : waiting + n_levels * kLevel;
  const std::int64_t to_stride = is_last ? n_stride : kPassElements;
#pragma GCC unroll 1
  for (std::int64_t p = 0; p < n_pairs; ++p) {
    Pair x[kHeld];
    each<kHeld>([&]<int r>() TREE_ATTN_LAMBDA {
      const std::byte* const from = row[r] + p * kPairBytes<T>;
      request_ahead<T, true>(from);
      x[r] = load_pair<T>(from);
    });
    each<2 * kParts>([&]<int i>() TREE_ATTN_LAMBDA {
      Part part[kHeld];
      each<kHeld>([&]<int r>()
                      TREE_ATTN_LAMBDA { part[r] = i < kParts ? x[r].x.part[i % kParts] : x[r].y.part[i % kParts]; });
      each<kQueries>([&]<int j>() TREE_ATTN_LAMBDA {
        Part sum = sum_of_products<kAll, kHeld>(weights[j], part);
        for (int level = 0; level < n_levels; ++level)
          sum = load_vector<Part>(waiting + level * kLevel + j * kPassElements + i * kPartLanes) + sum;
        __builtin_memcpy(to + j * to_stride + i * kPartLanes, &sum, sizeof sum);
      });
    });
    to += kPairElements, waiting += kPairElements;
  }
}

}  // namespace tree_attn::lanes
