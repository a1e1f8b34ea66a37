// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The state in the paper's form: a max m, and sums weighted by exp(s - m) (section 5, Alg. 3, appendix F).
///
/// This is the counterpart of reference/state/state.hpp for reading; all other code uses that file. There the shift is an
/// integer power of two. Here it is the largest score, so bringing two states to a common shift takes an exp and its
/// rounding:
///
///     sum_{a in S} exp(s_a) = exp(m) D,      sum_{a in S} exp(s_a) v_a = exp(m) n,      s_a = scale * q.k_a.
#pragma once

#include "tree_attn/reference/energy/log_sum_exp.hpp"
#include "tree_attn/reference/state/require.hpp"
#include "tree_attn/reference/state/state.hpp"

#include <Eigen/Core>

#include <cmath>
#include <cstdint>
#include <limits>

namespace tree_attn {

/// The state of a set of keys, in natural exponents.
struct NaturalState {
  double m;           ///< largest score; -inf for the empty set
  double D;           ///< denominator: sum of the weights exp(s_a - m)
  Eigen::VectorXd n;  ///< numerator [d_v]: sum of the weighted values
};

/// The identity of merge(): m = -inf, D = 0, n = 0 [d_v].
inline NaturalState natural_empty(Eigen::Index d_v) {
  return {-std::numeric_limits<double>::infinity(), 0, Eigen::VectorXd::Zero(d_v)};
}

/// The state of one key: m = s, D = 1, n = v.
///
/// Edges: s = -inf masks the key, and v is not read; s = +inf or NaN makes D and n NaN.
/// @param s natural score
/// @param[in] v value [d_v]
inline NaturalState natural_key(double s, const Eigen::Ref<const Eigen::VectorXd>& v) {
  if (s == -std::numeric_limits<double>::infinity()) return natural_empty(v.size());
  const double weight = safe_weight(s, s);
  return {s, weight, weight * v};
}

/// The state of the union of two disjoint sets.
///
///     m = max(m_x, m_y),   D = exp(m_x - m) D_x + exp(m_y - m) D_y,   n = exp(m_x - m) n_x + exp(m_y - m) n_y
///
/// Edges: the max keeps NaN; the empty state is neutral, also to itself.
/// @param[in] x, y states of disjoint sets of keys, n [d_v] in both
/// @throws std::invalid_argument if their lengths differ
/// @paper{alg_3, Alg. 3}
/// @paper{eq_shift, eq. (shift)}
inline NaturalState merge(const NaturalState& x, const NaturalState& y) {
  require(x.n.size() == y.n.size(), "merge: values of ", x.n.size(), " and of ", y.n.size(), " components");
  const double m = max_keeping_nan(Eigen::Vector2d(x.m, y.m));
  // The side with the larger m is not scaled. This also covers two infinite m, whose difference is NaN.
  const auto factor = [m](double m_x) { return m_x == m ? 1.0 : std::exp(m_x - m); };
  return {m, factor(x.m) * x.D + factor(y.m) * y.D, factor(x.m) * x.n + factor(y.m) * y.n};
}

/// The attention output and log-sum-exp of a state.
struct NaturalResult {
  Eigen::VectorXd z;  ///< n / D [d_v]; 0 for the empty set
  double lse;         ///< m + log D, natural; -inf for the empty set
};

/// z = n / D and lse = m + log D. The empty set gives 0 and -inf; a NaN in D gives NaN.
inline NaturalResult finish(const NaturalState& x) {
  if (x.D == 0) return {Eigen::VectorXd::Zero(x.n.size()), -std::numeric_limits<double>::infinity()};
  return {x.n / x.D, x.m + std::log(x.D)};
}

/// Converts a state with an integer shift: 2^e D = exp(e ln 2) D, so m = e ln 2, and D and n are unchanged.
///
/// This m is not the largest score, but ln 2 times the least integer not below any base-two score. By eq.
/// (shift) any shift is valid. D is then between 1/2 and N, and between 1 and N in the paper's form.
/// @param[in] state [2 + d_v], e = -inf gives m = -inf
/// @param d_v length of a value vector
template <class Real>
NaturalState to_natural(const Real* state, std::int64_t d_v) {
  const Eigen::Map<const Eigen::Matrix<Real, Eigen::Dynamic, 1>> n(state + kValues, d_v);
  return {kLn2 * static_cast<double>(state[kShift]), static_cast<double>(state[kSum]), n.template cast<double>()};
}

}  // namespace tree_attn
