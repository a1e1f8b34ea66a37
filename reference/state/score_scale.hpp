// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The factor of a score, half of it given to the query, so that q.k overflows only where the score does (eq. (7)).
#pragma once

#include "reference/state/state.hpp"

#include <algorithm>
#include <cmath>

namespace tree_attn {

/// log2(e) * scale = 2^a c as two factors: s_a = c ((2^a q).k_a).
///
/// A power of two commutes with rounding: the score has the bits of log2(e) * scale * (q.k_a), but no partial sum of the dot
/// product is larger than it must be. q = k = 1e19 with a scale of 1e-38 gives a score of 1.44, where q.k alone is beyond
/// F32. Elements of 2^a q below 2^-126 lose bits: that moves a score by at most 2^-149 sum_i |k_i|, or 2^-133 sum_i |k_i|
/// where queries are kept in BF16.
struct ScoreScale {
  float query = 1;  ///< 2^a, -126 <= a <= 0: multiplies q as it is read
  float score = 1;  ///< c, 1 <= |c| < 2 where the whole factor is between 2^-126 and 2: multiplies the dot product
};

/// Splits log2(e) * scale. A factor of 1 or more stays whole, for q.k overflows only if the score does; so do 0 and NaN.
/// @param scale multiplies q.k, often 1/sqrt(d_h)
inline ScoreScale split_scale(double scale) {
  const double factor = kLog2E * scale;
  if (factor == 0 || !(std::abs(factor) < 1)) return {1, static_cast<float>(factor)};
  const int a = std::max(std::ilogb(factor), -126);
  return {std::ldexp(1.0f, a), static_cast<float>(std::ldexp(factor, -a))};
}

}  // namespace tree_attn
