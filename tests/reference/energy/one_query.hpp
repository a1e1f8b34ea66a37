// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One query over random keys and a source, for tests of moments.
#pragma once

#include "tree_attn/reference/energy/energy.hpp"

#include <cmath>
#include <random>
#include <vector>

namespace tree_attn::test {

/// One query over N random keys, and a source.
struct OneQuery {
  Vector q, zeta;  ///< [d_h], [d_v]
  Matrix K, V;     ///< [N, d_h], [N, d_v]

  OneQuery(Eigen::Index N, Eigen::Index d_h, Eigen::Index d_v, double size_of_zeta, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    const auto matrix = [&](Eigen::Index rows, Eigen::Index cols) -> Matrix {
      return Matrix::NullaryExpr(rows, cols, [&] { return normal(random); });
    };
    q = matrix(d_h, 1) / std::sqrt(static_cast<double>(d_h));
    K = matrix(N, d_h);
    V = matrix(N, d_v);
    zeta = size_of_zeta * matrix(d_v, 1);
  }
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
