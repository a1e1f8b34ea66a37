// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The energy of self-attention and its gradient, for one query, causal queries and several heads (sections 4 and
/// C.1).
///
/// Attention is the gradient of a scalar. A source zeta is coupled to the values,
///
///     Z(zeta) = sum_a exp(q.k_a + zeta.v_a),      F(zeta) = log Z(zeta),
///
/// and dF/dzeta at zeta = 0 is the attention output. F is the cumulant generating function of the values: its derivatives
/// are the mean, the covariance and the higher cumulants. Z(zeta)/Z(0) is the moment generating function.
///
/// Shapes: q [d_h] includes the scale, as in the paper; K [N, d_h]; V [N, d_v]; zeta [d_v], or of length 0. A zeta of length
/// 0 means no source, and V is not read for the exponents (0 times an Inf value would be NaN). All logarithms are natural
/// and all elements double. energy<Scalar>() is the same code for a scalar type that carries derivatives or counts
/// operations.
///
/// Edges for all functions: a key with exponent -inf is masked and its value is not multiplied; if all keys are masked,
/// Z = 0, F = -inf and the gradient is 0; an exponent of +inf or NaN makes F and the gradient NaN. Only Z itself can
/// overflow.
#pragma once

#include "reference/energy/log_sum_exp.hpp"
#include "reference/state/require.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace tree_attn {

using Vector = Eigen::VectorXd;  ///< a column of doubles
using Matrix = Eigen::MatrixXd;  ///< a matrix of doubles
/// A matrix of scalars.
template <class Scalar>
using MatrixOf = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;
/// A reference to any matrix of scalars, without a copy. Scalar is double or given explicitly, as in VectorRefOf.
template <class Scalar>
using MatrixRefOf =
    std::type_identity_t<Eigen::Ref<const MatrixOf<Scalar>, 0, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>>;
using VectorRef = VectorRefOf<double>;  ///< reference to any column of doubles
using MatrixRef = MatrixRefOf<double>;  ///< reference to any matrix of doubles

/// The exponents r_a = q.k_a + zeta.v_a.
/// @param[in] q query [d_h]
/// @param[in] K keys [N, d_h]
/// @param[in] V values [N, d_v]
/// @param[in] zeta source [d_v] or [0]
/// @returns r [N]
/// @throws std::invalid_argument if the shapes of q and K, K and V, or zeta and V do not match
template <class Scalar = double>
VectorOf<Scalar> exponents(const VectorRefOf<Scalar>& q, const MatrixRefOf<Scalar>& K, const MatrixRefOf<Scalar>& V,
                           const VectorRefOf<Scalar>& zeta) {
  require(q.size() == K.cols(), "exponents: q has length ", q.size(), ", a key ", K.cols());
  require(K.rows() == V.rows(), "exponents: ", K.rows(), " keys, ", V.rows(), " values");
  if (zeta.size() != 0) require(zeta.size() == V.cols(), "exponents: zeta has length ", zeta.size(), ", a value ", V.cols());

  // A masked key stays masked, whatever its value is.
  VectorOf<Scalar> r = K * q;
  for (Eigen::Index a = 0; a < r.size(); ++a) {
    if (zeta.size() != 0 && r(a) != -std::numeric_limits<double>::infinity()) r(a) += V.row(a).dot(zeta);
  }
  return r;
}

/// The mean of the values under softmax(r): sum_a softmax(r)_a v_a over the keys that are not masked.
/// @param[in] r exponents [N]
/// @param[in] V values [N, d_v]
/// @returns [d_v]
/// @throws std::invalid_argument if r and V differ in length
/// @paper{eq_5, eq. (5)}
/// @paper{eq_16, eq. (16)}
template <class Scalar = double>
VectorOf<Scalar> mean_value(const VectorRefOf<Scalar>& r, const MatrixRefOf<Scalar>& V) {
  require(r.size() == V.rows(), "mean_value: ", r.size(), " exponents, ", V.rows(), " values");
  const VectorOf<Scalar> P = softmax<Scalar>(r);
  VectorOf<Scalar> mean = VectorOf<Scalar>::Zero(V.cols());
  for (Eigen::Index a = 0; a < r.size(); ++a) {
    if (r(a) != -std::numeric_limits<double>::infinity()) mean += P(a) * V.row(a).transpose();
  }
  return mean;
}

/// The partition function Z(zeta) = sum_a exp(q.k_a + zeta.v_a), computed without a shift. Inf if an exponent exceeds 709.8.
/// @param[in] q query [d_h]
/// @param[in] K keys [N, d_h]
/// @param[in] V values [N, d_v]
/// @param[in] zeta source [d_v] or [0]
/// @paper{eq_18, eq. (18)}
/// @paper{eq_19, eq. (19)}
inline double partition_function(const VectorRef& q, const MatrixRef& K, const MatrixRef& V, const VectorRef& zeta) {
  const Vector r = exponents(q, K, V, zeta);
  return r.unaryExpr([](double r_a) { return std::exp(r_a); }).sum();
}

/// The energy F(zeta) = log sum_a exp(q.k_a + zeta.v_a).
/// @param[in] q query [d_h]
/// @param[in] K keys [N, d_h]
/// @param[in] V values [N, d_v]
/// @param[in] zeta source [d_v] or [0]
/// @paper{eq_6, eq. (6)}
/// @paper{eq_7, eq. (7)}
/// @paper{eq_24, eq. (24)}
template <class Scalar = double>
Scalar energy(const VectorRefOf<Scalar>& q, const MatrixRefOf<Scalar>& K, const MatrixRefOf<Scalar>& V,
              const VectorRefOf<Scalar>& zeta) {
  return log_sum_exp<Scalar>(exponents<Scalar>(q, K, V, zeta));
}

/// The gradient of the energy, in closed form, at any zeta.
///
///     dF/dzeta = sum_a softmax(q.k + zeta.v)_a v_a
///
/// At zeta = 0 this is attention (Obs. 1).
/// @param[in] q query [d_h]
/// @param[in] K keys [N, d_h]
/// @param[in] V values [N, d_v]
/// @param[in] zeta source [d_v] or [0]
/// @returns [d_v]
/// @paper{obs_1, Obs. 1}
/// @paper{eq_5, eq. (5)}
/// @paper{eq_15, eq. (15)}
template <class Scalar = double>
VectorOf<Scalar> energy_gradient(const VectorRefOf<Scalar>& q, const MatrixRefOf<Scalar>& K, const MatrixRefOf<Scalar>& V,
                                 const VectorRefOf<Scalar>& zeta) {
  return mean_value<Scalar>(exponents<Scalar>(q, K, V, zeta), V);
}

/// The attention probabilities P_a = exp(q.k_a) / Z.
/// @param[in] q query [d_h]
/// @param[in] K keys [N, d_h]
/// @returns [N]
/// @throws std::invalid_argument if q and a key differ in length
/// @paper{eq_17, eq. (17)}
inline Vector attention_probabilities(const VectorRef& q, const MatrixRef& K) {
  require(q.size() == K.cols(), "attention_probabilities: q has length ", q.size(), ", a key ", K.cols());
  return softmax(K * q);
}

/// The attention output, z = sum_a P_a v_a = dF/dzeta at zeta = 0: the mean of the values.
/// @param[in] q query [d_h]
/// @param[in] K keys [N, d_h]
/// @param[in] V values [N, d_v]
/// @returns [d_v]
/// @paper{eq_16, eq. (16)}
/// @paper{eq_22, eq. (22)}
/// @paper{eq_23, eq. (23)}
inline Vector attention_mean(const VectorRef& q, const MatrixRef& K, const MatrixRef& V) {
  return energy_gradient(q, K, V, Vector());
}

/// Number of keys that query i of l sees under the causal mask: the keys 0 .. N - l + i of N. The paper has N = l.
inline Eigen::Index n_causal(Eigen::Index N, Eigen::Index l, Eigen::Index i) {
  return std::max<Eigen::Index>(0, N - l + i + 1);
}

/// The energy of l causal queries, each with its own source.
///
///     F_tot = sum_i log sum_{a <= i} exp(q_i.k_a + zeta_i.v_a)
///
/// @param[in] Q queries [l, d_h]
/// @param[in] K keys [N, d_h]
/// @param[in] V values [N, d_v]
/// @param[in] Zeta sources [l, d_v]
/// @returns F_tot; -inf if any query sees no key
/// @throws std::invalid_argument if the shapes do not match
/// @paper{eq_25, eq. (25)}
/// @paper{eq_35, eq. (35)}
template <class Scalar = double>
Scalar causal_energy(const MatrixRefOf<Scalar>& Q, const MatrixRefOf<Scalar>& K, const MatrixRefOf<Scalar>& V,
                     const MatrixRefOf<Scalar>& Zeta) {
  require(K.rows() == V.rows(), "causal_energy: ", K.rows(), " keys, ", V.rows(), " values");
  require(Q.rows() == Zeta.rows(), "causal_energy: ", Q.rows(), " queries, ", Zeta.rows(), " sources");
  Scalar F_tot(0);
  for (Eigen::Index i = 0; i < Q.rows(); ++i) {
    const Eigen::Index n = n_causal(K.rows(), Q.rows(), i);
    F_tot += energy<Scalar>(Q.row(i).transpose(), K.topRows(n), V.topRows(n), Zeta.row(i).transpose());
  }
  return F_tot;
}

/// dF_tot / dzeta_i for every query: row i is the causal attention of query i when Zeta = 0.
/// @param[in] Q queries [l, d_h]
/// @param[in] K keys [N, d_h]
/// @param[in] V values [N, d_v]
/// @param[in] Zeta sources [l, d_v]
/// @returns [l, d_v]
/// @throws std::invalid_argument if the shapes do not match
/// @paper{eq_26, eq. (26)}
inline Matrix causal_energy_gradient(const MatrixRef& Q, const MatrixRef& K, const MatrixRef& V, const MatrixRef& Zeta) {
  require(K.rows() == V.rows(), "causal_energy_gradient: ", K.rows(), " keys, ", V.rows(), " values");
  require(Q.rows() == Zeta.rows(), "causal_energy_gradient: ", Q.rows(), " queries, ", Zeta.rows(), " sources");
  Matrix gradient(Q.rows(), V.cols());
  for (Eigen::Index i = 0; i < Q.rows(); ++i) {
    const Eigen::Index n = n_causal(K.rows(), Q.rows(), i);
    gradient.row(i) = energy_gradient(Q.row(i).transpose(), K.topRows(n), V.topRows(n), Zeta.row(i).transpose());
  }
  return gradient;
}

/// The inputs of one head.
struct Head {
  Matrix Q;     ///< queries [l, d_h]
  Matrix K;     ///< keys [N, d_h]
  Matrix V;     ///< values [N, d_v]
  Matrix Zeta;  ///< sources [l, d_v]
};

/// The energy of several heads, which is the sum of their energies. Each head has its own source, so the gradient separates
/// by head.
/// @param[in] heads [n_h]
/// @paper{eq_27, eq. (27)}
/// @paper{eq_28, eq. (28)}
inline double multi_head_energy(std::span<const Head> heads) {
  double F_tot = 0;
  for (const Head& head : heads) F_tot += causal_energy(head.Q, head.K, head.V, head.Zeta);
  return F_tot;
}

/// The output projection applied to the values, v_a -> W_O v_a. The gradient of the energy is then the projected output.
/// @param[in] V values [N, d_v]
/// @param[in] W_O columns of the projection for this head [d, d_v]
/// @returns [N, d]
/// @throws std::invalid_argument if a value and a row of W_O differ in length
/// @paper{eq_29, eq. (29)}
inline Matrix fold_output_projection(const MatrixRef& V, const MatrixRef& W_O) {
  require(V.cols() == W_O.cols(), "fold_output_projection: a value has length ", V.cols(), ", a row of W_O ", W_O.cols());
  return V * W_O.transpose();
}

}  // namespace tree_attn
