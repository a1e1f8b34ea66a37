// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The affine hull of the values, with coordinates of its own, in which the Legendre transform is computed (appendix
/// C.2).
#pragma once

#include "reference/energy/energy.hpp"

namespace tree_attn {

/// The affine hull of the values, with coordinates in which they have mean 0 and covariance 1 under equal weights.
///
/// The values rarely span all of R^d_v: N values span at most N - 1 dimensions. Perpendicular to the hull F is linear, so F*
/// is determined within it.
struct AffineHull {
  Vector centre;  ///< mean of the values [d_v]
  Matrix axes;    ///< v_a = centre + axes y_a [d_v, r]
  Matrix dual;    ///< y_a = dual^T (v_a - centre) [d_v, r]; the transposed pseudo-inverse of axes
};

/// Computes the hull from the singular values of (V - centre) / sqrt(N). A singular value below 1e-13 times the largest
/// magnitude in V counts as 0.
/// @param[in] V values [N, d_v]
/// @throws std::invalid_argument if there are none, or one is not finite
AffineHull affine_hull(const MatrixRef& V);

}  // namespace tree_attn
