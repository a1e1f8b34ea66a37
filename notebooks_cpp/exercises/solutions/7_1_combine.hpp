// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 7.1: lines 3 to 6 of Alg. 3.
///
/// Hint: Line 3 is a maximum, line 4 a weight exp(lse - m) for each device, line 5 two sums, line 6 a quotient. A device
/// without keys has lse = -inf.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

/// z of all devices together. @param o output of each device over its keys @param lse their log-sum-exps; -inf: no key
inline double combine(const std::vector<double>& o, const std::vector<double>& lse) {
  const double m = *std::max_element(lse.begin(), lse.end());   // line 3
  if (m == -std::numeric_limits<double>::infinity()) return 0;  // no device has a key: exp(lse - m) would be NaN
  double n = 0, D = 0;
  for (std::size_t r = 0; r < o.size(); ++r) {
    const double weight = std::exp(lse[r] - m);  // line 4; 0 for a device without keys
    n += o[r] * weight, D += weight;             // line 5
  }
  return n / D;  // line 6
}
