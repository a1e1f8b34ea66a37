// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 2.1: the variance of the values in one pass.
///
/// Hint: The variance is the mean of squares less the square of the mean, which loses all digits of values near 10^8.
/// Moving all values by a constant changes no variance: move them by one that you know before the first key.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

/// The variance of the values v under P = softmax(r). It does not change when all values are moved by a constant, so the
/// moments are those of v_a - v_0.
inline double variance(const std::vector<double>& r, const std::vector<double>& v) {
  const double m = *std::max_element(r.begin(), r.end()), center = v[0];
  double D = 0, first = 0, second = 0;
  for (std::size_t a = 0; a < r.size(); ++a) {
    const double weight = std::exp(r[a] - m), x = v[a] - center;
    D += weight, first += weight * x, second += weight * x * x;
  }
  return second / D - first / D * (first / D);
}
