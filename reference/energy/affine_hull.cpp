// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The affine hull by a singular value decomposition, which takes long to compile and therefore is in no header.
#include "reference/energy/affine_hull.hpp"

#include <Eigen/SVD>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace tree_attn {

AffineHull affine_hull(const MatrixRef& V) {
  if (V.size() == 0 || !V.allFinite())
    throw std::invalid_argument("affine_hull: " + std::to_string(V.rows()) + " values of " + std::to_string(V.cols()) +
                                " components; at least one is needed, and all must be finite");
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
