// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Attention of one query as a stream, one key at a time (eq. (1)-(3) of section 3).
///
/// This is the paper's starting point in its plain form, which overflows unless the scores are small. The shift in
/// reference/energy/log_sum_exp.hpp prevents the overflow. The tree of reference/state/tree_reduce.hpp replaces the
/// sequential sum.
#pragma once

#include <Eigen/Core>

#include <cmath>
#include <stdexcept>
#include <string>

namespace tree_attn {

/// Numerator and denominator over the keys added so far.
///
///     s_i = exp(q.k_i),    n_i = n_{i-1} + s_i v_i,    D_i = D_{i-1} + s_i,    z = n_N / D_N
///
/// Edges: this form does not guard against overflow. A score above 709.8 makes s_i Inf and z NaN. If all scores are below
/// -745.2, or no key was added, z is 0/0 = NaN. A NaN stays NaN.
class AttentionStream {
 public:
  /// Starts with n_0 = 0 [d_v] and D_0 = 0.
  /// @param d_v length of a value vector
  explicit AttentionStream(Eigen::Index d_v) : n_(Eigen::VectorXd::Zero(d_v)) {}

  /// Adds one key.
  /// @param[in] q query [d_h], with the scale folded in
  /// @param[in] k key [d_h]
  /// @param[in] v value [d_v]
  /// @throws std::invalid_argument if lengths do not match
  /// @paper{eq_1, eq. (1)}
  /// @paper{eq_2, eq. (2)}
  /// @paper{eq_3, eq. (3)}
  void add(const Eigen::Ref<const Eigen::VectorXd>& q, const Eigen::Ref<const Eigen::VectorXd>& k,
           const Eigen::Ref<const Eigen::VectorXd>& v) {
    if (q.size() != k.size() || v.size() != n_.size())
      throw std::invalid_argument("AttentionStream::add: q has " + std::to_string(q.size()) + " elements and k " +
                                  std::to_string(k.size()) + ", v has " + std::to_string(v.size()) + " instead of " +
                                  std::to_string(n_.size()));
    const double s = std::exp(q.dot(k));
    n_ += s * v;
    D_ += s;
  }

  const Eigen::VectorXd& n() const { return n_; }  ///< numerator [d_v]
  double D() const { return D_; }                  ///< denominator

  /// z = n / D, the attention of the query over the keys added so far [d_v].
  /// @paper{eq_quotient, eq. (quotient)}
  Eigen::VectorXd z() const { return n_ / D_; }

 private:
  Eigen::VectorXd n_;
  double D_ = 0;
};

}  // namespace tree_attn
