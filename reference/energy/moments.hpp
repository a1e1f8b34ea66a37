// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Moments and cumulants of the values under the attention probabilities, and their generating functions (C.1).
///
/// Under P_a = softmax(q.k + zeta.v)_a a value is a random vector v, and each derivative with respect to zeta adds one
/// factor:
///
///     (1/Z) d^n Z / dzeta_A1 ... dzeta_An  =  <v_A1 ... v_An>        Z generates the moments
///     d^2 F / dzeta_A dzeta_B              =  <dv_A dv_B>            log Z generates the cumulants
///     d^3 F / dzeta_A dzeta_B dzeta_C      =  <dv_A dv_B dv_C>       from the fourth on they are not central moments
///
/// with F = log Z and dv = v minus the mean, which is energy_gradient(). All functions take any zeta; the paper has zeta =
/// 0. Shapes as in reference/energy/energy.hpp: q [d_h] including the scale, K [N, d_h], V [N, d_v], zeta [d_v] or [0]. For
/// causal queries and several heads pass the keys that the query sees, as causal_energy() does.
///
/// Edges for all functions: a key with exponent -inf is masked and its value is not read; if all keys are masked, every
/// moment (including order 0) and the entropy are 0; an exponent of +inf or NaN gives NaN; an Inf value makes each result
/// that it enters Inf or NaN.
#pragma once

#include "reference/energy/energy.hpp"
#include "reference/state/require.hpp"

#include <Eigen/Core>

#include <cmath>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace tree_attn {

/// Probabilities, exponents and values of the keys that are not masked.
struct SeenValues {
  Vector P;  ///< softmax of the exponents [n]
  Vector r;  ///< exponents [n]
  Matrix V;  ///< values [n, d_v]
};

/// Removes the masked keys (exponent -inf), so that the functions below sum over all remaining keys.
/// @param[in] q query [d_h]
/// @param[in] K keys [N, d_h]
/// @param[in] V values [N, d_v]
/// @param[in] zeta source [d_v] or [0]
/// @throws std::invalid_argument as exponents() does
inline SeenValues seen_values(const VectorRef& q, const MatrixRef& K, const MatrixRef& V, const VectorRef& zeta) {
  const Vector r = exponents(q, K, V, zeta);
  std::vector<Eigen::Index> seen;
  for (Eigen::Index a = 0; a < r.size(); ++a) {
    if (r(a) != -std::numeric_limits<double>::infinity()) seen.push_back(a);
  }
  return {softmax(r(seen)), r(seen), V(seen, Eigen::all)};
}

/// The n-th moment of the values, sum_a P_a v_aA1 ... v_aAn.
///
///     <v_A1 ... v_An>  =  (1/Z) d^n Z / dzeta_A1 ... dzeta_An
///
/// Order 0 gives 1, the sum of the probabilities.
/// @param[in] q query [d_h]
/// @param[in] K keys [N, d_h]
/// @param[in] V values [N, d_v]
/// @param[in] zeta source [d_v] or [0]
/// @param[in] A components [n], each in [0, d_v), in any order, with repetitions
/// @throws std::invalid_argument if a component is not in [0, d_v)
/// @paper{eq_20, eq. (20)}
inline double moment(const VectorRef& q, const MatrixRef& K, const MatrixRef& V, const VectorRef& zeta,
                     std::span<const Eigen::Index> A) {
  const SeenValues seen = seen_values(q, K, V, zeta);
  Vector term = seen.P;
  for (const Eigen::Index j : A) {
    if (j < 0 || j >= V.cols()) {
      throw std::invalid_argument("moment: component " + std::to_string(j) + " of " + std::to_string(V.cols()));
    }
    term.array() *= seen.V.col(j).array();
  }
  return term.sum();
}

/// The covariance, which is the Hessian of the energy. It is positive semidefinite, so F is convex in zeta.
///
///     d^2 F / dzeta dzeta^T  =  <dv dv^T>  =  <v v^T> - <v> <v>^T
///
/// The sum is taken about the mean, because the difference on the right cancels.
/// @param[in] q query [d_h]
/// @param[in] K keys [N, d_h]
/// @param[in] V values [N, d_v]
/// @param[in] zeta source [d_v] or [0]
/// @returns [d_v, d_v]
/// @paper{eq_cov, eq. (cov)}
inline Matrix covariance(const VectorRef& q, const MatrixRef& K, const MatrixRef& V, const VectorRef& zeta) {
  const SeenValues seen = seen_values(q, K, V, zeta);
  const Vector mean = seen.V.transpose() * seen.P;
  const Matrix dV = seen.V.rowwise() - mean.transpose();
  return dV.transpose() * seen.P.asDiagonal() * dV;
}

/// The third cumulant, the third derivative of the energy. It measures the skewness of the values.
///
///     d^3 F / dzeta_A dzeta_B dzeta_C  =  <dv_A dv_B dv_C>
///
/// @param[in] q query [d_h]
/// @param[in] K keys [N, d_h]
/// @param[in] V values [N, d_v]
/// @param[in] zeta source [d_v] or [0]
/// @returns [d_v] matrices [d_v, d_v]: entry A holds the derivative of the covariance in zeta_A
inline std::vector<Matrix> third_cumulant(const VectorRef& q, const MatrixRef& K, const MatrixRef& V,
                                          const VectorRef& zeta) {
  const SeenValues seen = seen_values(q, K, V, zeta);
  const Vector mean = seen.V.transpose() * seen.P;
  const Matrix dV = seen.V.rowwise() - mean.transpose();
  std::vector<Matrix> kappa;
  for (Eigen::Index A = 0; A < V.cols(); ++A) {
    const Vector weight = seen.P.array() * dV.col(A).array();
    kappa.push_back(dV.transpose() * weight.asDiagonal() * dV);
  }
  return kappa;
}

/// A partial sum of a series, with a bound of the remainder.
struct TaylorSum {
  double value;      ///< the terms up to the order asked for
  double remainder;  ///< bound of the absolute remainder, in exact arithmetic
};

/// The Taylor series of the moment generating function Z(zeta) / Z(0), up to a given order. With x = zeta.v,
///
///     Z(zeta) / Z(0)  =  sum_n 1/n! sum_{A1 ... An} zeta_A1 ... zeta_An <v_A1 ... v_An>  =  sum_n <x^n> / n!
///
/// and the moments are taken at zeta = 0. The sum over all tuples A is a moment of the scalar x. The remainder after order n
/// has Lagrange's form: for key a it is exp(theta x_a) x_a^(n+1) / (n+1)! with some theta in [0, 1], hence
///
///     |remainder|  <=  < |x|^(n+1) max(1, exp(x)) > / (n+1)!
///
/// The bound tends to 0 for every zeta, so the series converges everywhere.
/// @param[in] q query [d_h]
/// @param[in] K keys [N, d_h]
/// @param[in] V values [N, d_v]
/// @param[in] zeta source [d_v]; a zeta of length 0 gives {1, 0}
/// @param order n >= 0, the highest power of zeta that is kept
/// @throws std::invalid_argument if the order is negative, or the shapes do not match
/// @paper{eq_21, eq. (21)}
inline TaylorSum moment_series(const VectorRef& q, const MatrixRef& K, const MatrixRef& V, const VectorRef& zeta,
                               int order) {
  if (order < 0) throw std::invalid_argument("moment_series: order " + std::to_string(order));
  if (zeta.size() != 0)
    require(zeta.size() == V.cols(), "moment_series: zeta has length ", zeta.size(), ", a value ", V.cols());
  const SeenValues seen = seen_values(q, K, V, Vector());
  const Vector x = zeta.size() == 0 ? Vector(Vector::Zero(seen.P.size())) : Vector(seen.V * zeta);

  // Update term_a = P_a x_a^n / n! from order to order.
  double value = 0;
  Vector term = seen.P;
  for (int n = 0; n <= order; ++n) {
    value += term.sum();
    term.array() *= x.array() / (n + 1);
  }
  // The bound from logarithms: where exp(x_a) overflows, P_a may have underflowed. At x_a = 0 the logarithm is -inf, for
  // which Eigen's own exp() is not 0.
  const Vector log_P = seen.r.array() - log_sum_exp(seen.r);
  const Vector log_bound = log_P.array() + x.array().max(0) + (order + 1) * x.array().abs().log() - std::lgamma(order + 2);
  return {value, log_bound.unaryExpr([](double l) { return std::exp(l); }).sum()};
}

/// The entropy of the attention probabilities, -sum_a P_a log P_a, in nats: 0 if one key has all the weight, log N if all
/// keys weigh the same.
///
///     H  =  -<log P>  =  F - <r>,        since log P_a = r_a - F
///
/// F and the mean exponent may both be huge, so the largest exponent is subtracted from both first.
/// @param[in] q query [d_h]
/// @param[in] K keys [N, d_h]
/// @param[in] V values [N, d_v]
/// @param[in] zeta source [d_v] or [0]
inline double entropy(const VectorRef& q, const MatrixRef& K, const MatrixRef& V, const VectorRef& zeta) {
  const SeenValues seen = seen_values(q, K, V, zeta);
  if (seen.P.size() == 0) return 0;
  const Vector log_weight = seen.r.array() - max_keeping_nan(seen.r);
  double H = log_sum_exp(log_weight);
  for (Eigen::Index a = 0; a < log_weight.size(); ++a) {
    if (seen.P(a) != 0) H -= seen.P(a) * log_weight(a);  // P log P is 0 at P = 0, where the logarithm may be -inf
  }
  return H;
}

}  // namespace tree_attn
