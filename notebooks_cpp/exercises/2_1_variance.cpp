// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 2.1: the variance of the values in one pass.
///
/// Expected: The second cumulant sum_a P_a v_a^2 - (sum_a P_a v_a)^2 with P = softmax(r), also where the values are near
/// 10^8 (eq. (20)).
///
/// Run: ./run exercise 2.1
#include "notebooks_cpp/exercises/check.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/2_1_variance.hpp"
#else

// Change from here ...
/// The variance of the values v under P = softmax(r).
inline double variance(const std::vector<double>& r, const std::vector<double>& v) {
  const double m = *std::max_element(r.begin(), r.end());
  double D = 0, first = 0, second = 0;
  for (std::size_t a = 0; a < r.size(); ++a) {
    const double weight = std::exp(r[a] - m);
    D += weight, first += weight * v[a], second += weight * v[a] * v[a];
  }
  // Two numbers near 10^16, whose difference is near 1.
  return second / D - first / D * (first / D);
}
// ... to here.

#endif

int main() {
  expect_near(variance({0, 0}, {-1, 1}), 1, 1e-14, "values -1 and 1");
  expect_near(variance({3, 3}, {1e8 - 1, 1e8 + 1}), 1, 1e-9, "values 10^8 - 1 and 10^8 + 1");
  std::mt19937 random(21);
  std::normal_distribution<double> normal;
  for (int i = 0; i < 20; ++i) {
    std::vector<double> r(40), near(40), far(40);
    for (std::size_t a = 0; a < r.size(); ++a) {
      r[a] = normal(random), near[a] = std::round(256 * normal(random)) / 256;
      far[a] = 1e8 + near[a];  // exact
    }
    expect_near(variance(r, far), variance(r, near), 1e-9, "the same values, moved by 10^8");
  }
  return result();
}
