// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The state of a set of keys, its merge, its identity and its finish (section 5 of the paper).
///
/// Attention of one query over a set S of keys is carried by three things: an integer shift e, a weight sum D and a
/// weighted value sum n, with
///
///     sum_{a in S} 2^(s_a) = 2^e D,      sum_{a in S} 2^(s_a) v_a = 2^e n,      s_a = log2(exp(1)) * scale * q.k_a.
///
/// Every level of the machine runs this one merge: keys, lanes, warps, blocks, devices, nodes. CPU, CUDA and MPI code
/// include this file, and nothing else in the tree rescales anything.
///
/// In memory a state is 2 + d_v numbers in a row: e, D, n_0 .. n_{d_v - 1}. The shift is stored as a whole number of the
/// same floating-point type, so a state is one plain array that can travel, and the empty set has a shift of its own,
/// -infinity, which no score can reach.
#pragma once

#include "reference/state/host_device.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace tree_attn {

/// log2(e): turns a natural exponent into a binary one.
inline constexpr double kLog2E = 1.4426950408889634074;
/// ln 2: turns a binary logarithm into a natural one.
inline constexpr double kLn2 = 0.69314718055994530942;

/// Places of the shift e, the weight sum D and the first component of n in a state of 2 + d_v numbers.
inline constexpr int kShift = 0, kSum = 1, kValues = 2;

/// Numbers in a state: e, D and d_v components of n.
/// @param d_v length of a value vector
TREE_ATTN_HOST_DEVICE constexpr std::int64_t state_size(std::int64_t d_v) { return kValues + d_v; }

/// 2^x for a whole number x <= 0, exactly, or 0 where 2^x is no longer a normal number.
///
/// Built from the bits, so it costs a shift and no exp, and gives the same bits on every machine.
/// @param x whole number <= 0, or -infinity (gives 0), or NaN (gives 0: a NaN shift cannot arise, see key_shift())
template <class Real>
TREE_ATTN_HOST_DEVICE inline Real pow2(Real x) {
  static_assert(std::is_same_v<Real, float> || std::is_same_v<Real, double>);
  using Bits = std::conditional_t<std::is_same_v<Real, float>, std::uint32_t, std::uint64_t>;
  constexpr int kMantissa = std::is_same_v<Real, float> ? 23 : 52;
  constexpr int kBias = std::is_same_v<Real, float> ? 127 : 1023;
  // Written so that NaN and -infinity fail the comparison: neither may reach the cast.
  if (!(x >= Real(1 - kBias))) return Real(0);
  const Bits bits = static_cast<Bits>(static_cast<int>(x) + kBias) << kMantissa;
  Real result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

/// Shift of a single key: ceil(s), the least whole number with weight 2^(s - e) <= 1.
///
/// Edges: s = -inf gives -inf (the key is not seen); s = +inf gives +inf; s = NaN gives -inf, because NaN is carried by
/// the weight, and a shift must stay comparable or a max would drop it. A shift of zero is +0, never the -0 that ceil(-0.3)
/// is: of two equal shifts merge() keeps the left one, and its sign would tell which side was left.
/// @param s score in base two, log2(e) * scale * q.k
template <class Real>
TREE_ATTN_HOST_DEVICE inline Real key_shift(Real s) {
  return s == s ? std::ceil(s) + Real(0) : -std::numeric_limits<Real>::infinity();
}

/// Weight of a single key: 2^(s - e) in [1/2, 1], with e = key_shift(s). This is the only exponential there is.
///
/// Edges: s = -inf gives 0; s = +inf gives NaN (inf - inf, as the formula has it); s = NaN gives NaN.
template <class Real>
TREE_ATTN_HOST_DEVICE inline Real key_weight(Real s) {
  if (s == -std::numeric_limits<Real>::infinity()) return Real(0);
  return std::exp2(s - std::ceil(s));
}

/// How two states are brought to one shift: the one with the larger shift keeps its numbers, the other is scaled down.
template <class Real>
struct Rescale {
  Real shift;          ///< e = max(e_left, e_right)
  Real factor;         ///< 2^(e_low - e_high): a power of two or 0, so multiplying by it is exact
  bool right_is_high;  ///< which side keeps its numbers
};

/// The rescaling of merge(left, right); costs no exp.
///
/// @param e_left, e_right whole numbers, or -inf for an empty side
template <class Real>
TREE_ATTN_HOST_DEVICE inline Rescale<Real> rescale(Real e_left, Real e_right) {
  const bool right_is_high = e_right > e_left;
  const Real high = right_is_high ? e_right : e_left;
  const Real low = right_is_high ? e_left : e_right;
  // Equal shifts need no scaling; asked first, because inf - inf is NaN.
  return {high, low == high ? Real(1) : pow2(low - high), right_is_high};
}

/// One number of the merged state: high + 2^(e_low - e_high) * low.
///
/// The product is exact (or underflows) and the high side is never multiplied, so the one rounding is that of the
/// addition: swapping left and right changes no bit, and fusing multiply and add none unless the product is subnormal. Hence
/// tree_attn::state asks every compiler for no contraction. A factor of 0 still multiplies: a NaN on
/// the low side stays NaN, an Inf becomes NaN, nothing turns into a number.
template <class Real>
TREE_ATTN_HOST_DEVICE inline Real merge_element(const Rescale<Real>& r, Real left, Real right) {
  const Real high = r.right_is_high ? right : left, low = r.right_is_high ? left : right;
  return high + r.factor * low;
}

/// left <- merge(left, right) for states of disjoint sets of keys.
///
///     e = max(e_l, e_r),   D = 2^(e_l - e) D_l + 2^(e_r - e) D_r,   n = 2^(e_l - e) n_l + 2^(e_r - e) n_r
///
/// Associative up to the rounding of the additions, commutative in bits; the empty state is neutral bit for bit.
/// @param[in,out] left state [2 + d_v]
/// @param[in] right state [2 + d_v], may not overlap left
/// @param d_v length of a value vector
/// @paper{alg_3, Alg. 3}
template <class Real>
TREE_ATTN_HOST_DEVICE inline void merge(Real* __restrict left, const Real* __restrict right, std::int64_t d_v) {
  const Rescale<Real> r = rescale(left[kShift], right[kShift]);
  left[kShift] = r.shift;
  for (std::int64_t i = kSum; i < state_size(d_v); ++i) left[i] = merge_element(r, left[i], right[i]);
}

/// The identity: the empty set. e = -inf, D = 0, n = -0.
///
/// n is *negative* zero, the one number that changes no other when added: +0 would turn a -0 of the other side into +0.
/// @param[out] state [2 + d_v]
template <class Real>
TREE_ATTN_HOST_DEVICE inline void set_empty(Real* state, std::int64_t d_v) {
  state[kShift] = -std::numeric_limits<Real>::infinity();
  state[kSum] = Real(0);
  for (std::int64_t j = 0; j < d_v; ++j) state[kValues + j] = Real(-0.0);
}

/// Whether a state is that of the empty set: no key, or only keys with a score of -inf.
///
/// A NaN in D is not empty: the shift of a NaN key is -inf too (key_shift()), and only D tells them apart.
template <class Real>
TREE_ATTN_HOST_DEVICE inline bool is_empty(const Real* state) {
  return state[kSum] == Real(0) && state[kShift] == -std::numeric_limits<Real>::infinity();
}

/// What a lift adds to the shift of every key, see set_key(). A sum of 2^48 values, the most that any input holds, stays 16
/// bits clear of overflow, whatever the values.
inline constexpr int kLift = 64;

/// Shift and weight of one key.
template <class Real>
struct WeighedKey {
  Real shift, weight;
};

/// What becomes of the shift and the weight of the only key of a sequence: (s, 1), whose softmax weight is 1 whatever the
/// score, so that z = v to the bit and lse = ln 2 * s. A key that is not seen (weight 0) or has a weight of NaN stays as it
/// is.
/// @param s score in base two
/// @param key as any other key is weighed, with or without a lift: one key needs none
template <class Real>
TREE_ATTN_HOST_DEVICE inline WeighedKey<Real> single_key(Real s, WeighedKey<Real> key) {
  return key.weight > 0 ? WeighedKey<Real>{s, Real(1)} : key;
}

/// The state of one key: e = ceil(s) + lift, D = 2^(s - e), n = D v.
///
/// Without a lift D is in [1/2, 1], and a sum of many n may overflow where z = n / D, an average of the v, does not. A lift
/// makes D and n smaller by a power of two, exactly; the state keeps its meaning and merges as any other, also with states
/// that are not lifted.
///
/// A score of -inf is a key not seen: the empty state, and v is not read (0 * Inf would be NaN).
/// @param[out] state [2 + d_v]
/// @param s score in base two
/// @param[in] v value [d_v]
/// @param lift 0 or kLift
template <class Real>
TREE_ATTN_HOST_DEVICE inline void set_key(Real* __restrict state, Real s, const Real* __restrict v, std::int64_t d_v,
                                          Real lift = 0) {
  if (s == -std::numeric_limits<Real>::infinity()) return set_empty(state, d_v);
  const Real weight = key_weight(s) * pow2(-lift);
  state[kShift] = key_shift(s) + lift;
  state[kSum] = weight;
  for (std::int64_t j = 0; j < d_v; ++j) state[kValues + j] = weight * v[j];
}

/// The state of the only key of a sequence: (s, 1, v), see single_key(). Its shift is no whole number: it merges with the
/// empty set alone.
///
/// Edges as in set_key(): a score of -inf is the empty state, one of +inf or NaN has a weight of NaN.
/// @param[out] state [2 + d_v]
/// @param s score in base two
/// @param[in] v value [d_v]
template <class Real>
TREE_ATTN_HOST_DEVICE inline void set_single_key(Real* __restrict state, Real s, const Real* __restrict v,
                                                 std::int64_t d_v) {
  set_key(state, s, v, d_v);
  const WeighedKey<Real> key = single_key(s, WeighedKey<Real>{state[kShift], state[kSum]});
  if (key.weight != Real(1)) return;
  state[kShift] = key.shift, state[kSum] = key.weight;
  for (std::int64_t j = 0; j < d_v; ++j) state[kValues + j] = v[j];
}

/// Natural log-sum-exp of a state: ln 2 * (e + log2 D). -inf for the empty set, NaN where D is NaN.
template <class Real>
TREE_ATTN_HOST_DEVICE inline Real finish_lse(const Real* state) {
  if (is_empty(state)) return -std::numeric_limits<Real>::infinity();
  const Real lse = Real(kLn2) * (state[kShift] + std::log2(state[kSum]));
  return lse == lse ? lse : std::numeric_limits<Real>::quiet_NaN();
}

/// One component of z = n / D, 0 for the empty set.
///
/// Where n is finite and the quotient is not, z is the largest finite number of its sign: z is an average of finite values,
/// so only rounding can have carried it past them, and no number is nearer to it. So the average of many FLT_MAX is FLT_MAX.
///
/// NaN leaves as the one canonical quiet NaN: the sign and payload of a NaN depend on the order of operands, and all ranks
/// must end with the same bits.
/// @param[in] state its first two numbers, e and D, are read
/// @param n_j component j of n
template <class Real>
TREE_ATTN_HOST_DEVICE inline Real finish_value(const Real* state, Real n_j) {
  constexpr Real kLargest = std::numeric_limits<Real>::max();
  const Real z_j = is_empty(state) ? Real(0) : n_j / state[kSum];
  if (std::fabs(n_j) <= kLargest && std::fabs(z_j) > kLargest) return z_j > 0 ? kLargest : -kLargest;
  return z_j == z_j ? z_j : std::numeric_limits<Real>::quiet_NaN();
}

/// z = n / D and lse = ln 2 * (e + log2 D): the end of every reduction.
///
/// The empty set gives z = 0 and lse = -inf.
/// @param[in] state [2 + d_v]
/// @param[out] z [d_v]
/// @returns lse, natural
template <class Real>
TREE_ATTN_HOST_DEVICE inline Real finish(const Real* state, Real* z, std::int64_t d_v) {
  for (std::int64_t j = 0; j < d_v; ++j) z[j] = finish_value(state, state[kValues + j]);
  return finish_lse(state);
}

}  // namespace tree_attn
