// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 1.1: the logarithm of a sum of exponentials, for any exponents.
///
/// Hint: Take the largest exponent m out of the sum: log sum exp(r) = m + log sum exp(r - m). Then no term exceeds 1.
/// Where all are -inf, r - m is NaN.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

/// log sum_a exp(r_a). The largest exponent is taken out of the sum, so no term exceeds 1 and one of them is 1.
inline double log_sum_exp(const std::vector<double>& r) {
  double m = -std::numeric_limits<double>::infinity();
  for (const double r_a : r) m = std::max(m, r_a);
  if (m == -std::numeric_limits<double>::infinity()) return m;  // m - m would be NaN
  double sum = 0;
  for (const double r_a : r) sum += std::exp(r_a - m);
  return m + std::log(sum);
}
