// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The plane that the values span, with coordinates of its own: where the Legendre transform works (appendix C.2).
#pragma once

#include "reference/energy/energy.hpp"

#include <Eigen/SVD>

#include <algorithm>
#include <cmath>

namespace tree_attn {

/// The plane that the values span, with coordinates in which they have mean 0 and covariance 1 (every key counted alike).
///
/// Values rarely span all of R^d_v: N of them span at most N - 1 dimensions. F is flat, up to a linear term, across the
/// plane, and everything about F* happens in it.
struct AffineHull {
  Vector centre;  ///< mean of the values [d_v]
  Matrix axes;    ///< v_a = centre + axes y_a [d_v, r]
  Matrix dual;    ///< y_a = dual^T (v_a - centre) [d_v, r]; the transposed pseudo-inverse of axes
};

/// Finds the plane by the singular values of V - centre; one below 1e-13 of the largest number in V is rounding, and 0.
/// @param[in] V values [N, d_v], not empty, finite
inline AffineHull affine_hull(const MatrixRef& V) {
  AffineHull hull{V.colwise().mean().transpose(), {}, {}};
  const Matrix X = V.rowwise() - hull.centre.transpose();
  const Eigen::JacobiSVD<Matrix> svd(X, Eigen::ComputeThinU | Eigen::ComputeThinV);
  const Vector sigma = svd.singularValues() / std::sqrt(static_cast<double>(V.rows()));
  const double rounding = 1e-13 * V.cwiseAbs().maxCoeff();
  const auto r = std::count_if(sigma.begin(), sigma.end(), [rounding](double x) { return x > rounding; });
  hull.axes = svd.matrixV().leftCols(r) * sigma.head(r).asDiagonal();
  hull.dual = svd.matrixV().leftCols(r) * sigma.head(r).cwiseInverse().asDiagonal();
  return hull;
}

}  // namespace tree_attn
