// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 3.1: the source that moves the mean.
///
/// Hint: The mean of the values rises with zeta, because its derivative is a variance. A zeta below and one above are
/// enough to halve the interval between them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

/// The source at which the mean of the values is z. @param r exponents @param v values @param z between the least and the
/// largest value
inline double source_of(const std::vector<double>& r, const std::vector<double>& v, double z) {
  // F is convex, so its derivative rises with zeta: bracket the place, and halve.
  const auto mean = [&](double zeta) {
    double m = -1e300, D = 0, n = 0;
    for (std::size_t a = 0; a < r.size(); ++a) m = std::max(m, r[a] + zeta * v[a]);
    for (std::size_t a = 0; a < r.size(); ++a) {
      const double weight = std::exp(r[a] + zeta * v[a] - m);
      D += weight, n += weight * v[a];
    }
    return n / D;
  };
  double low = -1, high = 1;
  while (mean(low) > z) low *= 2;
  while (mean(high) < z) high *= 2;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (mean(middle) < z ? low : high) = middle;
  }
  return (low + high) / 2;
}
