// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Random matrices, one query over random keys and a source, and central differences.
#pragma once

#include "reference/energy/energy.hpp"

#include <cmath>
#include <random>
#include <vector>

namespace tree_attn::test {

/// Standard normal numbers.
inline Matrix random_matrix(std::mt19937& random, Eigen::Index rows, Eigen::Index cols) {
  std::normal_distribution<double> normal;
  return Matrix::NullaryExpr(rows, cols, [&] { return normal(random); });
}

/// Central differences of a function of a matrix, component by component.
template <class Function>
Matrix slopes(const Function& function, const Matrix& at, double step = 1e-5) {
  Matrix slope(at.rows(), at.cols());
  for (Eigen::Index i = 0; i < at.size(); ++i) {
    Matrix up = at, down = at;
    up(i) += step, down(i) -= step;
    slope(i) = (function(up) - function(down)) / (2 * step);
  }
  return slope;
}

/// One query over N random keys, and a source.
struct OneQuery {
  std::mt19937 random;
  Vector q;     ///< [d_h]
  Matrix K, V;  ///< [N, d_h], [N, d_v]
  Vector zeta;  ///< [d_v]

  OneQuery(Eigen::Index N, Eigen::Index d_h, Eigen::Index d_v, double size_of_zeta, unsigned seed)
      : random(seed),
        q(matrix(d_h, 1) / std::sqrt(static_cast<double>(d_h))),
        K(matrix(N, d_h)),
        V(matrix(N, d_v)),
        zeta(size_of_zeta * matrix(d_v, 1)) {}
  Matrix matrix(Eigen::Index rows, Eigen::Index cols) { return random_matrix(random, rows, cols); }
  double Z(const Vector& at) const { return partition_function(q, K, V, at); }  ///< Z(zeta)
  double F(const Vector& at) const { return energy(q, K, V, at); }              ///< F(zeta)
};

/// All tuples of n components out of d_v.
inline std::vector<std::vector<Eigen::Index>> tuples(int n, Eigen::Index d_v) {
  std::vector<std::vector<Eigen::Index>> all{{}};
  for (int i = 0; i < n; ++i) {
    std::vector<std::vector<Eigen::Index>> longer;
    for (const std::vector<Eigen::Index>& A : all) {
      for (Eigen::Index j = 0; j < d_v; ++j) {
        longer.push_back(A);
        longer.back().push_back(j);
      }
    }
    all = longer;
  }
  return all;
}

}  // namespace tree_attn::test
