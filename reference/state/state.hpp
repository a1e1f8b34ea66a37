// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The state of a set of keys: merge, identity and finish (section 5 of the paper).
///
/// A state represents the attention of one query over a set S of keys. It consists of an integer shift e, a weight sum D and
/// a weighted value sum n, with
///
///     sum_{a in S} 2^(s_a) = 2^e D,      sum_{a in S} 2^(s_a) v_a = 2^e n,      s_a = log2(exp(1)) * scale * q.k_a.
///
/// Every level of the machine uses this one merge: keys, lanes, warps, blocks, devices, nodes. CPU, CUDA and MPI code
/// include this file and share its rescale().
///
/// In memory a state is an array of 2 + d_v elements: e, D, n_0 .. n_{d_v - 1}. The integer shift is stored in the
/// floating-point type of the other elements, so a state is sent as one plain array. The empty set has shift -infinity. A
/// finite score always has a finite shift.
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

/// Indices of the shift e, the weight sum D and the first component of n in a state of 2 + d_v elements.
inline constexpr int kShift = 0, kSum = 1, kValues = 2;

/// Elements of a state: e, D and the d_v components of n.
/// @param d_v length of a value vector
TREE_ATTN_HOST_DEVICE constexpr std::int64_t state_size(std::int64_t d_v) { return kValues + d_v; }

/// 2^x for an integer x <= 0, exactly; 0 where 2^x is below the normal range.
///
/// The result is assembled from its bits. That takes a shift instead of an exp, and gives the same bits on every machine.
/// @param x integer <= 0, or -infinity (gives 0), or NaN (gives 0; no shift is NaN, see key_shift())
template <class Real>
TREE_ATTN_HOST_DEVICE inline Real pow2(Real x) {
  static_assert(std::is_same_v<Real, float> || std::is_same_v<Real, double>);
  using Bits = std::conditional_t<std::is_same_v<Real, float>, std::uint32_t, std::uint64_t>;
  constexpr int kMantissa = std::is_same_v<Real, float> ? 23 : 52;
  constexpr int kBias = std::is_same_v<Real, float> ? 127 : 1023;
  // NaN and -infinity must fail this comparison: casting either to int is undefined.
  if (!(x >= Real(1 - kBias))) return Real(0);
  const Bits bits = static_cast<Bits>(static_cast<int>(x) + kBias) << kMantissa;
  Real result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

/// 2^g for -1/2 <= g <= 1/2, by a polynomial, fused or not. The bits of std::exp2 differ between C libraries.
TREE_ATTN_HOST_DEVICE inline float exp2_polynomial(float g, bool is_fused = false) {
  float p = 0x1.416b5ep-13f;
  const float coefficients[] = {0x1.5f0830p-10f, 0x1.3b2de0p-7f, 0x1.c6af7cp-5f, 0x1.ebfbdcp-3f, 0x1.62e430p-1f, 1.0f};
  for (const float c : coefficients) p = is_fused ? std::fma(p, g, c) : p * g + c;
  return p;
}

/// 2^f for -1 <= f <= 0.
TREE_ATTN_HOST_DEVICE inline float exp2_fraction(float f) {
  return f < -0.5f ? exp2_polynomial(f + 1) / 2 : exp2_polynomial(f);
}

/// Shift of a single key: ceil(s), the least integer e with weight 2^(s - e) <= 1.
///
/// Edges: s = -inf gives -inf (the key is masked); s = +inf gives +inf; s = NaN gives -inf. The weight carries the NaN; a
/// NaN shift would not compare, and a max could drop it. A zero shift is always +0, although ceil(-0.3) is -0: merge() keeps
/// the left one of two equal shifts, so the sign of a zero would depend on the order of the operands.
/// @param s score in base two, log2(e) * scale * q.k
template <class Real>
TREE_ATTN_HOST_DEVICE inline Real key_shift(Real s) {
  return s == s ? std::ceil(s) + Real(0) : -std::numeric_limits<Real>::infinity();
}

/// Weight of a single key: 2^(s - e) in [1/2, 1], with e = key_shift(s), by std::exp2. Decodes have their own exponentials.
///
/// Edges: s = -inf gives 0; s = +inf gives NaN (inf - inf, as in the formula); s = NaN gives NaN.
template <class Real>
TREE_ATTN_HOST_DEVICE inline Real key_weight(Real s) {
  if (s == -std::numeric_limits<Real>::infinity()) return Real(0);
  return std::exp2(s - std::ceil(s));
}

/// The rescaling of two states to a common shift: the side with the larger shift is unchanged, the other is scaled down.
template <class Real>
struct Rescale {
  Real shift;          ///< e = max(e_left, e_right)
  Real factor;         ///< 2^(e_low - e_high): a power of two or 0, so multiplying by it is exact
  bool right_is_high;  ///< whether the right side is the one not scaled
};

/// The rescaling of merge(left, right), without an exp.
///
/// @param e_left, e_right integers, or -inf for an empty side
template <class Real>
TREE_ATTN_HOST_DEVICE inline Rescale<Real> rescale(Real e_left, Real e_right) {
  const bool right_is_high = e_right > e_left;
  const Real high = right_is_high ? e_right : e_left;
  const Real low = right_is_high ? e_left : e_right;
  // Equal shifts need no scaling. This also covers two infinite shifts, whose difference is NaN.
  return {high, low == high ? Real(1) : pow2(low - high), right_is_high};
}

/// One element of the merged state: high + 2^(e_low - e_high) * low.
///
/// The product is exact unless it underflows, and the high side is never multiplied, so the addition is the only rounding.
/// Swapping left and right therefore changes no bit. Fusing the multiply and the add changes a bit only if the product is
/// subnormal; to exclude that case too, reference/CMakeLists.txt disables contraction in every compiler. A factor of 0 still
/// multiplies, so a NaN on the low side stays NaN and an Inf becomes NaN.
template <class Real>
TREE_ATTN_HOST_DEVICE inline Real merge_element(const Rescale<Real>& r, Real left, Real right) {
  const Real high = r.right_is_high ? right : left, low = r.right_is_high ? left : right;
  return high + r.factor * low;
}

/// left <- merge(left, right) for states of disjoint sets of keys.
///
///     e = max(e_l, e_r),   D = 2^(e_l - e) D_l + 2^(e_r - e) D_r,   n = 2^(e_l - e) n_l + 2^(e_r - e) n_r
///
/// Associative up to the rounding of the additions, and commutative bit for bit. The empty state is neutral bit for bit.
/// @param[in,out] left state [2 + d_v]
/// @param[in] right state [2 + d_v]; must not overlap left
/// @param d_v length of a value vector
/// @paper{alg_3, Alg. 3}
template <class Real>
TREE_ATTN_HOST_DEVICE inline void merge(Real* __restrict left, const Real* __restrict right, std::int64_t d_v) {
  const Rescale<Real> r = rescale(left[kShift], right[kShift]);
  left[kShift] = r.shift;
  for (std::int64_t i = kSum; i < state_size(d_v); ++i) left[i] = merge_element(r, left[i], right[i]);
}

/// The identity, which is the state of the empty set: e = -inf, D = 0, n = -0.
///
/// n is *negative* zero because x + -0 has the bits of x for every x. Adding +0 would turn -0 into +0.
/// @param[out] state [2 + d_v]
template <class Real>
TREE_ATTN_HOST_DEVICE inline void set_empty(Real* state, std::int64_t d_v) {
  state[kShift] = -std::numeric_limits<Real>::infinity();
  state[kSum] = Real(0);
  for (std::int64_t j = 0; j < d_v; ++j) state[kValues + j] = Real(-0.0);
}

/// Tests whether a state is empty: without keys, or with only keys with a score of -inf.
///
/// A state with D = NaN is not empty. A key with a NaN score also has shift -inf (key_shift()); only D distinguishes the
/// two.
template <class Real>
TREE_ATTN_HOST_DEVICE inline bool is_empty(const Real* state) {
  return state[kSum] == Real(0) && state[kShift] == -std::numeric_limits<Real>::infinity();
}

/// The state of one key: e = ceil(s), D = 2^(s - e) in [1/2, 1], n = D v.
///
/// A score of -inf masks the key: the state is empty, and v is not read (0 * Inf would be NaN).
/// @param[out] state [2 + d_v]
/// @param s score in base two
/// @param[in] v value [d_v]
template <class Real>
TREE_ATTN_HOST_DEVICE inline void set_key(Real* __restrict state, Real s, const Real* __restrict v, std::int64_t d_v) {
  if (s == -std::numeric_limits<Real>::infinity()) return set_empty(state, d_v);
  const Real weight = key_weight(s);
  state[kShift] = key_shift(s);
  state[kSum] = weight;
  for (std::int64_t j = 0; j < d_v; ++j) state[kValues + j] = weight * v[j];
}

/// The state of a learned sink, which takes weight and has the value 0. Gradient and output are those of one more key with
/// the natural logit s, whatever the query is. It is merged once, on the right, after the last merge of keys.
///
/// Edges: s = -inf changes nothing; s = +inf or NaN makes D NaN. Without any other key, z = 0 and lse = s up to rounding.
struct SinkState {
  float shift, weight, value;  ///< (ceil t, 2^(t - ceil t), 0); of s = -inf (-inf, -0, -0)

  /// @param s natural logit, which no scale multiplies
  TREE_ATTN_HOST_DEVICE explicit SinkState(float s) {
    const auto t = static_cast<float>(kLog2E * static_cast<double>(s));
    const bool is_none = t == -std::numeric_limits<float>::infinity();
    shift = key_shift(t), weight = is_none ? -0.0f : exp2_fraction(t - std::ceil(t)), value = is_none ? -0.0f : 0.0f;
  }
};
/// state <- merge(state, sink). @param[in,out] state [2 + d_v]
inline void add_sink(float* state, float s, std::int64_t d_v) {
  const SinkState sink(s);
  const Rescale<float> r = rescale(state[kShift], sink.shift);
  state[kShift] = r.shift, state[kSum] = merge_element(r, state[kSum], sink.weight);
  for (std::int64_t j = kValues; j < kValues + d_v; ++j) state[j] = merge_element(r, state[j], sink.value);
}

/// log2(2^e x) for an integer e and x > 0; +inf where x is +inf, NaN where x is NaN.
///
/// With x = m 2^i and m in [sqrt(1/2), sqrt(2)]:
///
///     log2(2^e x) = (e + i) + 2 / ln 2 * artanh t,     t = (m - 1) / (m + 1),     artanh t = t + t^3 / 3 + t^5 / 5 + ...
///
/// e + i is exact, so two large exponents may cancel. The series ends with t^17: |t| < 0.172, so what is left out is below
/// 2^-49 of the sum. The log2 of a C library, or of CUDA, has other bits in other versions and on other processors. Here
/// every operation is written down, so hosts and devices have the same bits.
TREE_ATTN_HOST_DEVICE inline double log2_of(double e, float x) {
  if (!(x <= std::numeric_limits<float>::max())) return e + x;
  const double wide = x;  // no float is subnormal as a double
  std::uint64_t bits;
  std::memcpy(&bits, &wide, sizeof bits);
  const std::uint64_t exponent = bits >> 52, bits_of_1 = std::uint64_t{1023} << 52;
  bits += bits_of_1 - (exponent << 52);
  double i = static_cast<double>(exponent) - 1023, m;
  std::memcpy(&m, &bits, sizeof m);
  if (m > 1.4142135623730950488) m *= 0.5, i += 1;
  const double t = (m - 1) / (m + 1), t2 = t * t;
  double sum = 0;
  for (int k = 17; k > 0; k -= 2) sum = sum * t2 + 1.0 / k;
  return e + i + 2 * kLog2E * t * sum;
}
TREE_ATTN_HOST_DEVICE inline double log2_of(double e, double x) {
  int i = 0;  // frexp() sets it if x is finite. For references: log2 has the bits of the C library
  std::frexp(x * 0.70710678118654752440, &i);
  return e + i + std::log2(std::ldexp(x, -i));
}

/// Natural log-sum-exp of a state: ln 2 * (e + log2 D), evaluated in double and rounded once. -inf for the empty set, NaN
/// where D is NaN.
template <class Real>
TREE_ATTN_HOST_DEVICE inline Real finish_lse(const Real* state) {
  if (is_empty(state)) return -std::numeric_limits<Real>::infinity();
  const Real lse = static_cast<Real>(kLn2 * log2_of(state[kShift], state[kSum]));
  return lse == lse ? lse : std::numeric_limits<Real>::quiet_NaN();
}

/// One component of z = n / D; 0 for the empty set.
///
/// If n_j is finite but the quotient is not, the result is the largest finite number of its sign. z is an average of finite
/// values, so only rounding can have exceeded that number, and it is the nearest one. The average of many FLT_MAX is thus
/// FLT_MAX.
///
/// Every NaN is replaced by the same quiet NaN. The sign and payload of a computed NaN depend on the order of the operands,
/// but all ranks must return the same bits.
/// @param[in] state only e and D are read
/// @param n_j component j of n
template <class Real>
TREE_ATTN_HOST_DEVICE inline Real finish_value(const Real* state, Real n_j) {
  constexpr Real kLargest = std::numeric_limits<Real>::max();
  const Real z_j = is_empty(state) ? Real(0) : n_j / state[kSum];
  if (std::fabs(n_j) <= kLargest && std::fabs(z_j) > kLargest) return z_j > 0 ? kLargest : -kLargest;
  return z_j == z_j ? z_j : std::numeric_limits<Real>::quiet_NaN();
}

/// z_j = n_j / D for every j, and lse = ln 2 * (e + log2 D).
/// @param e_and_D a copy of both, which no store to z can change: only then does the compiler vectorize the divisions
/// @param n n[j] is component j of n
/// @param[out] z [d_v]
/// @returns lse, natural
template <class Real, class Values>
TREE_ATTN_HOST_DEVICE inline Real finish_values(const Real (&e_and_D)[2], const Values& n, Real* __restrict z,
                                                std::int64_t d_v) {
  std::int32_t n_finite = 0;  // as wide as a float: counted in 64 bits, the loop takes a quarter to a half longer
  for (std::int64_t j = 0; j < d_v; ++j) {
    z[j] = n[j] / e_and_D[kSum];
    n_finite += std::fabs(z[j]) <= std::numeric_limits<Real>::max();
  }
  // Only quotients that are not finite differ from finish_value(). Those of the empty set, n / 0, are not.
  for (std::int64_t j = 0; n_finite < d_v && j < d_v; ++j) z[j] = finish_value(e_and_D, n[j]);
  return finish_lse(e_and_D);
}

/// z = n / D and lse = ln 2 * (e + log2 D): the last step of every reduction.
///
/// The empty set gives z = 0 and lse = -inf.
/// @param[in] state [2 + d_v]
/// @param[out] z [d_v], may not overlap state
/// @returns lse, natural
template <class Real>
TREE_ATTN_HOST_DEVICE inline Real finish(const Real* __restrict state, Real* __restrict z, std::int64_t d_v) {
  return finish_values({state[kShift], state[kSum]}, state + kValues, z, d_v);
}

}  // namespace tree_attn
