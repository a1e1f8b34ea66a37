// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief log-sum-exp and softmax of a vector, in the safe form (eq. (4) of section 4, eq. (35)-(38) of appendix F).
///
/// log-sum-exp is the seed of the whole derivation: its gradient is the softmax. Attention is that one fact, read twice.
#pragma once

#include <Eigen/Core>
#include <cmath>
#include <limits>

namespace tree_attn {

/// Largest entry of z, a NaN before any number; -inf for an empty vector.
///
/// A plain max compares, every comparison with NaN is false, and so the NaN is dropped or kept by luck of its place.
/// @param[in] z [N]
inline double max_keeping_nan(const Eigen::Ref<const Eigen::VectorXd>& z) {
  if (z.size() == 0) return -std::numeric_limits<double>::infinity();
  return z.maxCoeff<Eigen::PropagateNaN>();
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
/// @paper{eq_35, eq. (35)}
/// @paper{eq_36, eq. (36)}
/// @paper{eq_37, eq. (37)}
/// @paper{eq_38, eq. (38)}
inline double safe_weight(double z, double m) {
  if (z == -std::numeric_limits<double>::infinity() && !std::isnan(m)) return 0;
  return std::exp(z - m);
}

/// The weights of all entries, w_a = exp(z_a - m) with m = max_a z_a.
/// @param[in] z [N]
/// @returns w [N]
inline Eigen::VectorXd safe_weights(const Eigen::Ref<const Eigen::VectorXd>& z) {
  const double m = max_keeping_nan(z);
  return z.unaryExpr([m](double z_a) { return safe_weight(z_a, m); });
}

/// log sum_a exp(z_a), natural, as m + log sum_a exp(z_a - m).
///
/// Edges: no entry, or only -inf, gives -inf; a +inf or a NaN gives NaN. Entries of 1e300 do not overflow.
/// @param[in] z [N]
/// @paper{eq_4, eq. (4)}
inline double log_sum_exp(const Eigen::Ref<const Eigen::VectorXd>& z) {
  const double m = max_keeping_nan(z);
  if (m == -std::numeric_limits<double>::infinity()) return m;
  return m + std::log(safe_weights(z).sum());
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
inline Eigen::VectorXd softmax(const Eigen::Ref<const Eigen::VectorXd>& z) {
  const Eigen::VectorXd w = safe_weights(z);
  const double D = w.sum();
  if (D == 0) return w;
  return w / D;
}

}  // namespace tree_attn
