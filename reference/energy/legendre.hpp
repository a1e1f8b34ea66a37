// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The Legendre transform of the energy, computed by a damped Newton method (appendix C.2, corrected).
///
///     F*(z) = sup_zeta ( z.zeta - F(zeta) ),      F(zeta) = log sum_a exp(s_a + zeta.v_a),   s_a = q.k_a
///
/// F*(z) measures the cost of moving the mean of the values from the attention output to z. Of all distributions P over the
/// keys with mean value z, the least KL divergence from softmax(s) is F*(z) + F(0). The cost is 0 at the attention output
/// and positive elsewhere. No P has a mean outside the convex hull of the values; there F* = +inf.
///
/// Shapes as in energy.hpp: q [d_h] including the scale, K [N, d_h], V [N, d_v], z and zeta [d_v]. All logarithms are
/// natural, all elements double. For several causal queries F_tot is a sum of functions of one source each, and F* is the
/// sum of their transforms.
#pragma once

#include "reference/energy/affine_hull.hpp"
#include "reference/energy/energy.hpp"
#include "reference/energy/moments.hpp"
#include "reference/state/require.hpp"

#include <Eigen/Cholesky>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>

namespace tree_attn {

/// KL(P || softmax(s)) = sum_a P_a (log P_a - log softmax(s)_a), in nats.
///
/// Edges: a key with P_a = 0 contributes 0, whatever its score; P_a > 0 on a key with score -inf gives +inf.
/// @param[in] P probabilities [N]
/// @param[in] s scores [N]
/// @throws std::invalid_argument if P and s differ in length
inline double kl_divergence(const VectorRef& P, const VectorRef& s) {
  require(P.size() == s.size(), "kl_divergence: ", P.size(), " probabilities, ", s.size(), " scores");
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const double lse = log_sum_exp(s);
  double sum = 0;
  for (Eigen::Index a = 0; a < P.size(); ++a) {
    const double log_softmax = s(a) == -kInf ? -kInf : s(a) - lse;  // also where no key is seen, and lse is -inf
    if (P(a) != 0) sum += P(a) * (std::log(P(a)) - log_softmax);
  }
  return sum;
}

/// The result of the Legendre transform at z.
struct LegendrePoint {
  double value;       ///< F*(z), natural
  Vector zeta;        ///< maximizer, equal to dF*/dz. Of several, the one of least norm, parallel to the affine hull [d_v]
  Vector P;           ///< softmax(s + zeta.v): of all distributions with mean value z the nearest to attention [N]
  double divergence;  ///< KL(P || softmax(s)) = F*(z) + F(0), summed over keys
  Matrix curvature;   ///< Hessian of F*: pseudo-inverse of the covariance of the values under P [d_v, d_v]
  int n_steps;        ///< Newton steps taken; 1 at the attention output, where the first step confirms convergence
};

/// Maximum number of Newton steps.
inline constexpr int kLegendreMaxSteps = 400;

namespace legendre_detail {

/// Throws an Error: "legendre_transform: z = (1, 2, 3, 4, ...)", then the parts.
template <class Error, class... Parts>
[[noreturn]] void refuse_point(const VectorRef& z, const Parts&... parts) {
  const Eigen::IOFormat in_a_row(6, Eigen::DontAlignCols, ", ");
  std::ostringstream text;
  text << "legendre_transform: z = (" << z.head(std::min<Eigen::Index>(z.size(), 4)).transpose().format(in_a_row)
       << (z.size() > 4 ? ", ...)" : ")");
  (text << ... << parts);
  throw Error(text.str());
}

/// Throws if the transform is not finite for these inputs.
inline void require_finite(const VectorRef& s, const MatrixRef& V, const VectorRef& z) {
  if (s.size() == 0) throw std::domain_error("legendre_transform: all keys are masked, F = -inf and F* = +inf everywhere");
  if (!s.allFinite() || !V.allFinite() || !z.allFinite())
    refuse_point<std::domain_error>(z, ", a score or value of a key that is not masked is not finite");
}

/// Step length along the Newton direction d, given the change of every exponent along it, De_a = d.v_a.
///
/// Let phi(t) = F(zeta + t d) and w = max De - min De. The third derivative of phi is a third central moment of d.v, so
///
///     phi''' <= w phi'',    phi''(t) <= phi''(0) exp(w t),    g(t) - g(0) >= decrement (t - (exp(w t) - 1 - w t) / w^2)
///
/// with g = z.zeta - F. The last bound is largest, and positive, at t = log(1 + w) / w, so no line search is needed, and
/// t -> 1 as w -> 0. Far from the maximum the bound is pessimistic: while w is large, t is doubled as long as g grows.
inline double stride(const Vector& r, const Vector& e, const Vector& De) {
  const double w = De.maxCoeff() - De.minCoeff();
  double t = w > 0 ? std::log1p(w) / w : 1;
  double g = -log_sum_exp(r + t * De);
  while (w > 0.5 && (e + t * De).maxCoeff() >= 0) {
    const double g_double = -log_sum_exp(r + 2 * t * De);
    if (!(g_double > g + 1e-9 * (1 + std::abs(g)))) break;
    g = g_double;
    t *= 2;
  }
  return t;
}

/// End of the maximization of g(eta) = -log sum_a exp(s_a + eta.y_a), with z as the origin.
struct Ascent {
  Vector eta;         // [r]
  Vector P;           // softmax(s + eta.y) [N]
  Matrix covariance;  // of y under P [r, r]
  int n_steps;
  bool outside;  // all eta.y_a < 0: a plane separates the origin from the values
};

/// Maximizes g in the coordinates of the affine hull. The stopping rule is that of legendre_transform().
inline Ascent ascend(const Vector& s, const Matrix& Y) {
  const double reach = Y.rowwise().norm().maxCoeff();
  Ascent c{Vector::Zero(Y.cols()), {}, {}, 0, false};
  double decrement_before = std::numeric_limits<double>::infinity();
  for (bool done = false;; ++c.n_steps) {
    // dg = -<y>, d^2 g = -cov(y).
    const Vector e = Y * c.eta;
    c.P = softmax(s + e);
    const Vector mean = Y.transpose() * c.P;
    const Matrix X = Y.rowwise() - mean.transpose();
    c.covariance = X.transpose() * c.P.asDiagonal() * X;

    c.outside = -e.maxCoeff() > 1e-13 * reach * c.eta.norm();
    if (done || c.outside || c.n_steps == kLegendreMaxSteps) return c;

    // The damped Newton step. The ridge matters only where the covariance has lost all digits.
    const Vector ridge = Vector::Constant(Y.cols(), 1e-15 * reach * reach);
    const Vector d = (c.covariance + Matrix(ridge.asDiagonal())).ldlt().solve(-mean);
    const Vector De = Y * d;
    const double decrement = -mean.dot(d);
    done = De.maxCoeff() - De.minCoeff() <= 1e-6 || (decrement <= 1e-10 && decrement > decrement_before / 2);
    decrement_before = decrement;
    c.eta += stride(s + e, e, De) * d;
  }
}

}  // namespace legendre_detail

/// F*(z) = sup_zeta ( z.zeta - F(zeta) ) by a damped Newton method in the affine hull of the values.
///
/// All exponents are taken relative to z. This leaves a log-sum-exp and no difference of large terms:
///
///     g(zeta) = z.zeta - F(zeta) = -log sum_a exp(s_a + zeta.(v_a - z)),    dg = z - <v>_P,    d^2 g = -cov_P(v).
///
/// The iteration starts at zeta = 0 with step d = cov^-1 dg, damped as in legendre_detail::stride. It *stops* one step after
/// either of two conditions holds. First: no two exponents change by amounts along d that differ by more than 1e-6; the
/// error after that step is of the order of its square. Second: dg.d, Newton's estimate of twice the error of F*, is at most
/// 1e-10 and no longer halves from step to step (z is on the boundary, or the rest is rounding).
///
/// Cases by the position of z:
/// - inside the hull (relative interior): the supremum is attained, zeta is finite, `<v>`_P = z;
/// - on the boundary: F* is finite but not attained, and |zeta| grows without bound. value is then within about 1e-10 of F*,
///   zeta is the last iterate, and P has all its weight, up to rounding, on the face that contains z. At a corner v_c of the
///   hull F* = -log sum exp(s_a) over the keys with v_a = v_c, which is -s_c for a single such key;
/// - outside: F* = +inf, reported as an error. The proof is a zeta with zeta.(v_a - z) < 0 for every a: a plane between z
///   and the hull. Within about 1e-7 of the spread of the values from the boundary, inside and outside cannot always be
///   distinguished. Such a point is treated as a boundary point, or fails after 400 steps;
/// - off the affine hull by more than 1e-10 of the spread of the values: outside;
/// - one key, or all values equal: only z = v is inside, with F* = -F(0) and zeta = 0.
///
/// A key with score -inf is masked: its value is not read and P_a = 0.
///
/// @param[in] q query [d_h]
/// @param[in] K keys [N, d_h]
/// @param[in] V values [N, d_v]
/// @param[in] z mean value [d_v]
/// @throws std::domain_error if z is outside the convex hull of the values, all keys are masked, or a score or value of an
///   unmasked key, or z, is not finite
/// @throws std::invalid_argument if the shapes do not match
/// @throws std::runtime_error after 400 steps: z is too close to the boundary for double precision
/// @paper{eq_maxmin, eq. (maxmin)}
inline LegendrePoint legendre_transform(const VectorRef& q, const MatrixRef& K, const MatrixRef& V, const VectorRef& z) {
  if (V.cols() == 0) throw std::invalid_argument("legendre_transform: values have no components");
  require(z.size() == V.cols(), "legendre_transform: z has length ", z.size(), ", a value ", V.cols());

  // Remove the masked keys.
  const SeenValues seen = seen_values(q, K, V, Vector());
  const Vector& s = seen.r;
  const Matrix& V_seen = seen.V;
  legendre_detail::require_finite(s, V_seen, z);

  // Change to the coordinates of the affine hull, with z as the origin.
  const AffineHull hull = affine_hull(V_seen);
  const Vector from_centre = z - hull.centre;
  const double off = (from_centre - hull.axes * (hull.dual.transpose() * from_centre)).norm();
  const double spread = (V_seen.rowwise() - hull.centre.transpose()).rowwise().norm().maxCoeff();
  if (off > 1e-10 * spread + 1e-13 * V_seen.cwiseAbs().maxCoeff())
    legendre_detail::refuse_point<std::domain_error>(z, " is outside the convex hull of ", s.size(), " values, ", off,
                                                     " off the plane that they span");
  const Matrix Y = (V_seen.rowwise() - z.transpose()) * hull.dual;

  // Maximize. For a normal of length 1, the hull lies at least -max_a normal.(v_a - z) away from z.
  const legendre_detail::Ascent c = legendre_detail::ascend(s, Y);
  const Vector zeta = hull.dual * c.eta;
  if (c.outside)
    legendre_detail::refuse_point<std::domain_error>(z, " is outside the convex hull of ", s.size(), " values, at least ",
                                                     -(Y * c.eta).maxCoeff() / zeta.norm(), " away");
  if (c.n_steps == kLegendreMaxSteps)
    legendre_detail::refuse_point<std::runtime_error>(z, " is too near to the boundary of the convex hull of ", s.size(),
                                                      " values: no end after ", kLegendreMaxSteps, " steps");

  // Return to all keys and all components.
  const Vector P = softmax(exponents(q, K, V, zeta));
  const double divergence = kl_divergence(P, exponents(q, K, V, Vector()));
  const Matrix curvature = hull.dual * c.covariance.ldlt().solve(Matrix(hull.dual.transpose()));
  return {-log_sum_exp(s + Y * c.eta), zeta, P, divergence, curvature, c.n_steps};
}

}  // namespace tree_attn
