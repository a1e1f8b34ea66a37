// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief log-sum-exp and softmax of a vector in the safe form (eq. (4) of section 4, eq. (35)-(38) of appendix F).
///
/// The derivation starts from one fact: the gradient of log-sum-exp is softmax.
///
/// Every function computes in double by default. With an explicit template argument, as in log_sum_exp<Scalar>(z), it
/// computes in another scalar type, for example one that carries derivatives or counts operations.
#pragma once

#include <Eigen/Core>

#include <cmath>
#include <limits>
#include <type_traits>

namespace tree_attn {

/// A column of scalars.
template <class Scalar>
using VectorOf = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;
/// A reference to any column of scalars, without a copy. Scalar is never deduced: it is double or given explicitly.
template <class Scalar>
using VectorRefOf = std::type_identity_t<Eigen::Ref<const VectorOf<Scalar>>>;

/// Largest entry of z: NaN if any entry is NaN, -inf for an empty vector.
///
/// A plain max would keep or drop a NaN depending on its position, because every comparison with NaN is false.
/// @param[in] z [N]
template <class Scalar = double>
Scalar max_keeping_nan(const VectorRefOf<Scalar>& z) {
  if (z.size() == 0) return Scalar(-std::numeric_limits<double>::infinity());
  return z.template maxCoeff<Eigen::PropagateNaN>();
}

/// Weight of one key relative to the largest exponent m: exp(z - m), in [0, 1].
///
/// Subtracting m inside every exponential prevents overflow. It changes the energy by the constant -m and leaves the
/// gradient unchanged.
///
/// Edges: a masked key, z = -inf, has weight 0 for every m that is not NaN (-inf - -inf would be NaN). With z = m = +inf the
/// weight is NaN. A NaN in z or m gives NaN. Eigen's vectorised exp is not used: it clamps its argument, and a weight that
/// should be 0 becomes 5.6e-309.
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

/// log sum_a exp(z_a), natural, computed as m + log sum_a exp(z_a - m).
///
/// Edges: an empty vector and a vector of -inf give -inf; a +inf or NaN entry gives NaN. Entries of 1e300 do not overflow.
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
/// Edges: an empty vector gives an empty vector. If all entries are -inf, all results are 0, the gradient of a constant. A
/// +inf or NaN entry makes every result NaN, because the sum is NaN.
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
