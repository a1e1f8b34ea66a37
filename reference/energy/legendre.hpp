// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The Legendre transform of the energy, by a damped Newton method (appendix C.2, as it really is).
///
///     F*(z) = sup_zeta ( z.zeta - F(zeta) ),      F(zeta) = log sum_a exp(s_a + zeta.v_a),   s_a = q.k_a
///
/// It answers a question about attention: what does it cost to move the mean of the values from the attention output to
/// z? Of all distributions P over the keys with mean value z, the least KL divergence from softmax(s) is F*(z) + F(0).
/// Nothing is cheaper than the attention output itself, where the cost is 0, and no P at all has a mean outside the convex
/// hull of the values, where F* = +inf.
///
/// Shapes as in energy.hpp: q [d_h] with the scale folded in, K [N, d_h], V [N, d_v], z and zeta [d_v]; all natural, in
/// double. With several causal queries F_tot is a sum of functions of one source each, and F* is the sum of theirs.
#pragma once

#include "reference/energy/affine_hull.hpp"
#include "reference/energy/energy.hpp"
#include "reference/energy/moments.hpp"

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
/// Edges: a key with P_a = 0 costs nothing, whatever its score; P_a > 0 on a key with score -inf costs +inf.
/// @param[in] P probabilities [N]
/// @param[in] s scores [N]
/// @throws std::invalid_argument if P and s differ in length
inline double kl_divergence(const VectorRef& P, const VectorRef& s) {
  if (P.size() != s.size())
    throw std::invalid_argument("kl_divergence: " + std::to_string(P.size()) + " probabilities and " +
                                std::to_string(s.size()) + " scores");
  const double lse = log_sum_exp(s);
  double sum = 0;
  for (Eigen::Index a = 0; a < P.size(); ++a) {
    if (P(a) != 0) sum += P(a) * (std::log(P(a)) - (s(a) - lse));
  }
  return sum;
}

/// What the Legendre transform found at z.
struct LegendrePoint {
  double value;       ///< F*(z), natural
  Vector zeta;        ///< where the supremum is; dF*/dz. Of many, the one of least norm: it lies along the plane [d_v]
  Vector P;           ///< softmax(s + zeta.v), the distribution nearest to attention with mean value z [N]
  double divergence;  ///< KL(P || softmax(s)) = F*(z) + F(0), summed key by key
  Matrix curvature;   ///< Hessian of F*: pseudo-inverse of the covariance of the values under P [d_v, d_v]
  double decrement;   ///< gradient . Newton step at the last test: about twice what F* still lacks before the last step
  int n_steps;        ///< Newton steps taken; 1 at the attention output, which the first one confirms
};

/// Newton steps before giving up.
inline constexpr int kLegendreMaxSteps = 400;

namespace legendre_detail {

/// "z = (1, 2, 3, 4, ...)".
inline std::string name_point(const VectorRef& z) {
  std::ostringstream text;
  text << "legendre_transform: z = (";
  for (Eigen::Index j = 0; j < std::min<Eigen::Index>(z.size(), 4); ++j) text << (j == 0 ? "" : ", ") << z(j);
  text << (z.size() > 4 ? ", ...)" : ")");
  return text.str();
}

/// A number in six digits, also a small one.
inline std::string short_number(double x) {
  std::ostringstream text;
  text << x;
  return text.str();
}

/// Throws if what follows could not be a number.
inline void require_finite(const VectorRef& s, const MatrixRef& V, const VectorRef& z) {
  if (s.size() == 0) throw std::domain_error("legendre_transform: no key is seen, F = -inf and F* = +inf everywhere");
  if (!s.allFinite() || !V.allFinite() || !z.allFinite())
    throw std::domain_error(name_point(z) + ", a score or a value that is seen is not finite");
}

/// How far along the Newton step d to go, given the change of every exponent along it, De_a = d.v_a.
///
/// Let phi(t) = F(zeta + t d). Its third derivative is a third central moment of d.v, so phi''' <= s phi'' with
/// s = max De - min De, and phi''(t) <= phi''(0) exp(s t). Then g = z.zeta - F gains at least
/// decrement (t - (exp(s t) - 1 - s t) / s^2), which is largest, and positive, at t = log(1 + s) / s: no search is needed
/// to climb, and t -> 1 as s -> 0. Far out that is timid; while s is large we go on doubling as long as it pays.
inline double stride(const Vector& r, const Vector& e, const Vector& De) {
  const double s = De.maxCoeff() - De.minCoeff();
  double t = s > 0 ? std::log1p(s) / s : 1;
  double g = -log_sum_exp(r + t * De);
  while (s > 0.5 && (e + t * De).maxCoeff() >= 0) {
    const double g_double = -log_sum_exp(r + 2 * t * De);
    if (!(g_double > g + 1e-9 * (1 + std::abs(g)))) break;
    g = g_double;
    t *= 2;
  }
  return t;
}

/// Where the climb of g(eta) = -log sum_a exp(s_a + eta.y_a) ended, z being the origin.
struct Ascent {
  Vector eta;         // [r]
  Vector P;           // softmax(s + eta.y) [N]
  Matrix covariance;  // of y under P [r, r]
  double decrement;   // at the last test
  int n_steps;
  bool outside;  // all eta.y_a < 0: a plane parts the origin from the values
};

/// Climbs g in the plane of the values. The stopping rule is that of legendre_transform().
inline Ascent ascend(const Vector& s, const Matrix& Y) {
  const double reach = Y.rowwise().norm().maxCoeff();
  Ascent c{Vector::Zero(Y.cols()), {}, {}, 0, 0, false};
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

    // The Newton step, damped. Its ridge matters only where the covariance has lost all digits.
    const Vector ridge = Vector::Constant(Y.cols(), 1e-15 * reach * reach);
    const Vector d = (c.covariance + Matrix(ridge.asDiagonal())).ldlt().solve(-mean);
    const Vector De = Y * d;
    c.decrement = -mean.dot(d);
    done = De.maxCoeff() - De.minCoeff() <= 1e-6 || (c.decrement <= 1e-10 && c.decrement > decrement_before / 2);
    decrement_before = c.decrement;
    c.eta += stride(s + e, e, De) * d;
  }
}

}  // namespace legendre_detail

/// F*(z) = sup_zeta ( z.zeta - F(zeta) ) by a damped Newton method in the plane of the values.
///
/// Everything is taken relative to z, which leaves a log-sum-exp and no difference of large numbers:
///
///     g(zeta) = z.zeta - F(zeta) = -log sum_a exp(s_a + zeta.(v_a - z)),    dg = z - <v>_P,    d^2 g = -cov_P(v).
///
/// Start at zeta = 0, step d = cov^-1 dg, damped as legendre_detail::stride says. *Stop* after the step that follows one of
/// two findings: along d no two exponents part by more than 1e-6 (that step leaves the square of it), or dg.d <= 1e-10,
/// Newton's estimate of twice what F* still lacks, is no longer halved from step to step (z is on the boundary, or what is
/// left is rounding).
///
/// Where z is:
/// - inside the hull (relative interior): the supremum is attained, zeta is finite, `<v>`_P = z;
/// - on its boundary: F* is finite but not attained, |zeta| grows without bound. value is then within about 1e-10 of F*,
///   zeta is where the iteration stopped, and P has all but a rounding of its weight on the face of z.
///   At a corner v_c of the hull F* = -log sum exp(s_a) over the keys with v_a = v_c, which is -s_c if there is one;
/// - outside: F* = +inf, an error. It is proved on the way: some zeta has zeta.(v_a - z) < 0 for every a, a plane
///   between z and the hull. Nearer to the boundary than about 1e-7 of the spread of the values the two sides cannot
///   always be told apart: such a point counts as one of the boundary, or is given up;
/// - off the plane of the values by more than 1e-10 of their spread: outside;
/// - with one key, or all values equal: only z = v is inside, F* = -F(0), zeta = 0.
///
/// A key with score -inf is not seen: its value is not looked at and P_a = 0.
///
/// @param[in] q query [d_h]
/// @param[in] K keys [N, d_h]
/// @param[in] V values [N, d_v]
/// @param[in] z mean value that is asked for [d_v]
/// @throws std::domain_error if z is outside the convex hull of the values, no key is seen, or something seen is NaN or Inf
/// @throws std::invalid_argument if shapes do not fit
/// @throws std::runtime_error after 400 steps: z is too near to the boundary for double
/// @paper{eq_maxmin, eq. (maxmin)}
inline LegendrePoint legendre_transform(const VectorRef& q, const MatrixRef& K, const MatrixRef& V, const VectorRef& z) {
  if (V.cols() == 0) throw std::invalid_argument("legendre_transform: values have no components");
  if (z.size() != V.cols())
    throw std::invalid_argument("legendre_transform: length of z and of a value differ: " + std::to_string(z.size()) +
                                " and " + std::to_string(V.cols()));

  // Leave out the keys that are not seen.
  const SeenValues seen = seen_values(q, K, V, Vector());
  const Vector& s = seen.r;
  const Matrix& V_seen = seen.V;
  legendre_detail::require_finite(s, V_seen, z);

  // Go to the plane of the values, with z as the origin.
  const AffineHull hull = affine_hull(V_seen);
  const Vector from_centre = z - hull.centre;
  const double off = (from_centre - hull.axes * (hull.dual.transpose() * from_centre)).norm();
  const double spread = (V_seen.rowwise() - hull.centre.transpose()).rowwise().norm().maxCoeff();
  const auto where = [&](const std::string& what) {
    return legendre_detail::name_point(z) + what + std::to_string(s.size()) + " values";
  };
  if (off > 1e-10 * spread + 1e-13 * V_seen.cwiseAbs().maxCoeff())
    throw std::domain_error(where(" is outside the convex hull of ") + ", " + legendre_detail::short_number(off) +
                            " off the plane that they span");
  const Matrix Y = (V_seen.rowwise() - z.transpose()) * hull.dual;

  // Climb. A normal of length 1 has all of the hull at least -max_a normal.(v_a - z) behind it.
  const legendre_detail::Ascent c = legendre_detail::ascend(s, Y);
  const Vector zeta = hull.dual * c.eta;
  if (c.outside)
    throw std::domain_error(where(" is outside the convex hull of ") + ", at least " +
                            legendre_detail::short_number(-(Y * c.eta).maxCoeff() / zeta.norm()) + " away");
  if (c.n_steps == kLegendreMaxSteps)
    throw std::runtime_error(where(" is too near to the boundary of the convex hull of ") + ": no end after " +
                             std::to_string(kLegendreMaxSteps) + " steps");

  // Back to all keys and all components.
  const Vector P = softmax(exponents(q, K, V, zeta));
  const double divergence = kl_divergence(P, exponents(q, K, V, Vector()));
  const Matrix curvature = hull.dual * c.covariance.ldlt().solve(Matrix(hull.dual.transpose()));
  return {-log_sum_exp(s + Y * c.eta), zeta, P, divergence, curvature, c.decrement, c.n_steps};
}

}  // namespace tree_attn
