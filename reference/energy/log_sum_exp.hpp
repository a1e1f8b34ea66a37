// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief log-sum-exp and softmax of a vector, in the safe form (eq. (4) of section 4, eq. (35)-(38) of appendix F).
///
/// log-sum-exp is the seed of the whole derivation: its gradient is the softmax. Attention is that one fact, read twice.
///
/// Every function is in double, and on demand in any other number: log_sum_exp(z) or log_sum_exp<Scalar>(z), with a Scalar
/// that carries derivatives along, or counts operations.
#pragma once

#include <Eigen/Core>

#include <cmath>
#include <limits>
#include <type_traits>

namespace tree_attn {

/// A column of numbers.
template <class Scalar>
using VectorOf = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;
/// Any column of numbers, not copied. The Scalar is never deduced: it is double, or it is named.
template <class Scalar>
using VectorRefOf = std::type_identity_t<Eigen::Ref<const VectorOf<Scalar>>>;

/// Largest entry of z, a NaN before any number; -inf for an empty vector.
///
/// A plain max compares, every comparison with NaN is false, and so the NaN is dropped or kept by luck of its place.
/// @param[in] z [N]
template <class Scalar = double>
Scalar max_keeping_nan(const VectorRefOf<Scalar>& z) {
  if (z.size() == 0) return Scalar(-std::numeric_limits<double>::infinity());
  return z.template maxCoeff<Eigen::PropagateNaN>();
}

/// Weight of one key against the largest score m: exp(z - m), in [0, 1].
///
/// Subtracting m inside every exponent lets none overflow, and moves the energy by a constant, -m, which no gradient sees.
///
/// Edges: z = -inf is a key not seen and weighs 0, whatever m is (-inf - -inf would be NaN); z = +inf has m = +inf and
/// weighs NaN; a NaN in z or m is kept. Eigen's own vectorised exp is not used: it clamps its argument, and a weight that
/// should be 0 comes out as 5.6e-309.
/// @param z natural exponent of the key
/// @param m largest exponent, or any other shift
/// @paper{eq_36, eq. (36)}
template <class Scalar = double>
Scalar safe_weight(std::type_identity_t<Scalar> z, std::type_identity_t<Scalar> m) {
  using std::exp;
  if (z == -std::numeric_limits<double>::infinity() && m == m) return Scalar(0);
  return exp(z - m);
}

/// The weights of all entries, w_a = exp(z_a - m) with m = max_a z_a.
/// @param[in] z [N]
/// @returns w [N]
template <class Scalar = double>
VectorOf<Scalar> safe_weights(const VectorRefOf<Scalar>& z) {
  const Scalar m = max_keeping_nan<Scalar>(z);
  return z.unaryExpr([&m](const Scalar& z_a) { return safe_weight<Scalar>(z_a, m); });
}

/// log sum_a exp(z_a), natural, as m + log sum_a exp(z_a - m).
///
/// Edges: no entry, or only -inf, gives -inf; a +inf or a NaN gives NaN. Entries of 1e300 do not overflow.
/// @param[in] z [N]
/// @paper{eq_4, eq. (4)}
/// @paper{eq_shift, eq. (shift)}
template <class Scalar = double>
Scalar log_sum_exp(const VectorRefOf<Scalar>& z) {
  using std::log;
  const Scalar m = max_keeping_nan<Scalar>(z);
  if (m == -std::numeric_limits<double>::infinity()) return m;
  return m + log(safe_weights<Scalar>(z).sum());
}

/// softmax(z)_j = exp(z_j) / sum_a exp(z_a), the gradient of log_sum_exp.
///
///     d/dz_j log sum_a exp(z_a) = softmax(z)_j
///
/// Edges: no entry gives an empty vector; only -inf gives all 0, the gradient of a constant; a +inf or a NaN gives NaN
/// everywhere, as its sum is NaN.
/// @param[in] z [N]
/// @returns [N], entries in [0, 1] with sum 1
/// @paper{eq_4, eq. (4)}
/// @paper{eq_37, eq. (37)}
/// @paper{eq_38, eq. (38)}
template <class Scalar = double>
VectorOf<Scalar> softmax(const VectorRefOf<Scalar>& z) {
  const VectorOf<Scalar> w = safe_weights<Scalar>(z);
  const Scalar D = w.sum();
  if (D == 0) return w;
  return w / D;
}

}  // namespace tree_attn
