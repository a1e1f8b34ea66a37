// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The Bayesian view of attention: the log-likelihood Gamma and its stationary point, which is a saddle (appendix
/// C.2).
///
///     Gamma(zeta, z) = sum_i ( z_i.zeta_i - F_i(zeta_i) )
///
/// F_i is outside the sum over components in z_i.zeta_i. Inside it, as printed in the paper, F_i would be subtracted d_v
/// times, and z* would be d_v times attention.
///
/// Gamma is stationary only at zeta* = 0, z* = attention. The paper reads that point as a maximum a posteriori, which it is
/// not: Gamma is linear in z and concave in zeta, so its Hessian has as many positive as negative eigenvalues. A maximum
/// appears when the source is eliminated: exp(-F*(z)), with F* = sup over zeta of Gamma, is largest at attention and nowhere
/// else (legendre.hpp). The saddle has a meaning too. Along *imaginary* zeta it is a maximum of |exp(-Gamma)|, and
/// exp(-n (F* + F(0))) is the leading term of the method of steepest descent for the density of the mean of n values drawn
/// from softmax(q.k).
///
/// Shapes: Q [l, d_h], K [N, d_h], V [N, d_v], Zeta and Z [l, d_v]; causal as in energy.hpp; one query is l = 1.
#pragma once

#include "reference/energy/energy.hpp"
#include "reference/energy/legendre.hpp"
#include "reference/energy/moments.hpp"
#include "reference/state/require.hpp"

#include <Eigen/Eigenvalues>

#include <stdexcept>
#include <string>

namespace tree_attn {

/// A source and an activation for each query, or the derivatives of Gamma with respect to both.
struct SourceAndActivation {
  Matrix Zeta;  ///< sources [l, d_v]
  Matrix Z;     ///< activations [l, d_v]
};

/// Throws std::invalid_argument unless sources and activations are [l, d_v].
/// @param function that has them as an argument
inline void require_shapes(const char* function, const MatrixRef& Q, const MatrixRef& V, const SourceAndActivation& at) {
  for (const Matrix* x : {&at.Zeta, &at.Z}) {
    if (x->rows() == Q.rows() && x->cols() == V.cols()) continue;
    throw std::invalid_argument(std::string(function) + ": sources and activations are [" + std::to_string(x->rows()) +
                                ", " + std::to_string(x->cols()) + "], expected [" + std::to_string(Q.rows()) + ", " +
                                std::to_string(V.cols()) + "]");
  }
}

/// Gamma(zeta, z) = sum_i ( z_i.zeta_i - F_i(zeta_i) ), F_i = log sum_{a <= i} exp(q_i.k_a + zeta_i.v_a).
///
/// Edges: +inf if any query sees no key; NaN where F is NaN.
/// @param[in] Q queries [l, d_h]
/// @param[in] K keys [N, d_h]
/// @param[in] V values [N, d_v]
/// @param[in] at Zeta and Z, each [l, d_v]
/// @throws std::invalid_argument if Zeta or Z is not [l, d_v]
/// @paper{eq_30, eq. (30)}
inline double log_likelihood(const MatrixRef& Q, const MatrixRef& K, const MatrixRef& V, const SourceAndActivation& at) {
  require_shapes("log_likelihood", Q, V, at);
  return at.Zeta.cwiseProduct(at.Z).sum() - causal_energy(Q, K, V, at.Zeta);
}

/// The derivatives of Gamma: dGamma/dz_i = zeta_i and dGamma/dzeta_i = z_i - dF_i/dzeta_i.
///
/// The first is 0 only at zeta_i = 0. There the second is z_i - attention, which is 0 only at z_i = attention.
/// @param[in] Q queries [l, d_h]
/// @param[in] K keys [N, d_h]
/// @param[in] V values [N, d_v]
/// @param[in] at Zeta and Z, each [l, d_v]
/// @returns dGamma/dZeta and dGamma/dZ, each [l, d_v]
/// @throws std::invalid_argument if Zeta or Z is not [l, d_v]
/// @paper{eq_31, eq. (31)}
inline SourceAndActivation log_likelihood_gradient(const MatrixRef& Q, const MatrixRef& K, const MatrixRef& V,
                                                   const SourceAndActivation& at) {
  require_shapes("log_likelihood_gradient", Q, V, at);
  return {at.Z - causal_energy_gradient(Q, K, V, at.Zeta), at.Zeta};
}

/// The only stationary point of Gamma: zeta* = 0, z* = dF/dzeta at 0, which is causal attention.
/// @param[in] Q queries [l, d_h]
/// @param[in] K keys [N, d_h]
/// @param[in] V values [N, d_v]
/// @paper{eq_32, eq. (32)}
/// @paper{eq_33, eq. (33)}
inline SourceAndActivation stationary_point(const MatrixRef& Q, const MatrixRef& K, const MatrixRef& V) {
  const Matrix zero = Matrix::Zero(Q.rows(), V.cols());
  return {zero, causal_energy_gradient(Q, K, V, zero)};
}

/// The Hessian of Gamma for one query, at any z, in the order (zeta, z):
///
///     ( -C  1 )      C = covariance of the values under softmax(q.k + zeta.v)
///     (  1  0 )
///
/// On an eigenvector of C with eigenvalue c it is the 2 x 2 matrix ((-c, 1), (1, 0)) of determinant -1, with one positive
/// and one negative eigenvalue, (-c +- sqrt(c^2 + 4)) / 2. The Hessian thus has d_v positive and d_v negative eigenvalues
/// for any values, and no stationary point is an extremum.
/// @param[in] q query [d_h]
/// @param[in] K keys [N, d_h]
/// @param[in] V values [N, d_v]
/// @param[in] zeta source [d_v]
/// @returns [2 d_v, 2 d_v]
inline Matrix log_likelihood_hessian(const VectorRef& q, const MatrixRef& K, const MatrixRef& V, const VectorRef& zeta) {
  const Eigen::Index d_v = V.cols();
  Matrix H = Matrix::Zero(2 * d_v, 2 * d_v);
  H.topLeftCorner(d_v, d_v) = -covariance(q, K, V, zeta);
  H.topRightCorner(d_v, d_v).setIdentity();
  H.bottomLeftCorner(d_v, d_v).setIdentity();
  return H;
}

/// Numbers of positive and negative eigenvalues of a symmetric matrix.
struct Signature {
  Eigen::Index n_positive;  ///< eigenvalues above 1e-12 of the largest magnitude
  Eigen::Index n_negative;  ///< eigenvalues below minus that
};

/// Counts the signs of the eigenvalues of a symmetric matrix.
/// @param[in] H symmetric [n, n], n >= 1
/// @throws std::invalid_argument if it is empty, or not square
inline Signature signature(const Matrix& H) {
  require(H.rows() == H.cols(), "signature: ", H.rows(), " rows, ", H.cols(), " columns");
  if (H.size() == 0) throw std::invalid_argument("signature: a matrix without elements");
  const Vector lambda = Eigen::SelfAdjointEigenSolver<Matrix>(H, Eigen::EigenvaluesOnly).eigenvalues();
  const double zero = 1e-12 * lambda.cwiseAbs().maxCoeff();
  return {(lambda.array() > zero).count(), (lambda.array() < -zero).count()};
}

/// The log-likelihood of z with the source eliminated, log of exp(-F*(z)), in place of eq. (34).
///
/// It is largest only at attention, where it is F(0). F*(z) + F(0) is the rate function of the mean of n values drawn from
/// softmax(q.k): Prob(mean near z) = exp(-n (F*(z) + F(0))), up to powers of n (Cramer). The likelihood is not normalised
/// over z. For n = 1 it is not a density, because a single value is one of the v_a.
/// @param[in] q query [d_h]
/// @param[in] K keys [N, d_h]
/// @param[in] V values [N, d_v]
/// @param[in] z activation [d_v]
/// @throws std::domain_error outside the convex hull of the values, and as legendre_transform() does
/// @paper{eq_34, eq. (34)}
/// @paper{eq_maxmin, eq. (maxmin)}
inline double profile_log_likelihood(const VectorRef& q, const MatrixRef& K, const MatrixRef& V, const VectorRef& z) {
  return -legendre_transform(q, K, V, z).value;
}

/// A Gaussian in the space of the values.
struct Gaussian {
  Vector mean;        ///< [d_v]
  Matrix covariance;  ///< [d_v, d_v], singular perpendicular to the affine hull of the values
};

/// Laplace's approximation of exp(-n F*(z)) around its peak: mean attention, covariance C / n.
///
/// The Hessian of F* at attention is the inverse of C, the covariance of the values under softmax(q.k), so the width of the
/// peak is the spread of the values. n = 1 gives the Gaussian with the first two moments of v, which is wrong unless v is
/// Gaussian. For the mean of n values it is the central limit theorem, correct up to O(1/sqrt(n)) as n grows. It is *not* an
/// uncertainty of the attention output, which is known exactly.
/// @param[in] q query [d_h]
/// @param[in] K keys [N, d_h]
/// @param[in] V values [N, d_v]
/// @param n number of values in the mean; 1 for the posterior spread of v itself
/// @throws std::invalid_argument if n < 1
inline Gaussian laplace_approximation(const VectorRef& q, const MatrixRef& K, const MatrixRef& V, double n = 1) {
  if (!(n >= 1)) throw std::invalid_argument("laplace_approximation: mean of " + std::to_string(n) + " values");
  return {attention_mean(q, K, V), covariance(q, K, V, Vector()) / n};
}

}  // namespace tree_attn
