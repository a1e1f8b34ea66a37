// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The scale of the scores as two factors, one applied to the query, so that q.k overflows only where the score does
/// (eq. (7)).
#pragma once

#include "reference/state/state.hpp"

#include <algorithm>
#include <cmath>

namespace tree_attn {

/// log2(e) * scale = 2^a c as two factors: s_a = c ((2^a q).k_a).
///
/// Multiplying by a power of two commutes with rounding. The score therefore has the bits of log2(e) * scale * (q.k_a), but
/// the partial sums of the dot product are smaller by 2^a. Example: q = k = 2e19 with a scale of 1e-38 gives a score of
/// 5.77, although q.k alone overflows F32. Elements of 2^a q below 2^-126 lose bits. That changes a score by at most 2^-149
/// sum_i |k_i|, or 2^-133 sum_i |k_i| where queries are stored in BF16.
struct ScoreScale {
  float query = 1;  ///< 2^a, -126 <= a <= 0: multiplies q when it is loaded
  float score = 1;  ///< c, 1 <= |c| <= 2 where the whole factor is between 2^-126 and 2: multiplies the dot product
};

/// Splits log2(e) * scale. A factor of 1 or more stays whole, because q.k then overflows only if the score does. 0 and NaN
/// stay whole too.
/// @param scale multiplies q.k, often 1/sqrt(d_h)
inline ScoreScale split_scale(double scale) {
  const double factor = kLog2E * scale;
  if (factor == 0 || !(std::abs(factor) < 1)) return {1, static_cast<float>(factor)};
  const int a = std::max(std::ilogb(factor), -126);
  return {std::ldexp(1.0f, a), static_cast<float>(std::ldexp(factor, -a))};
}

}  // namespace tree_attn
