// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 1.2: attention as the gradient of the energy.
///
/// Expected: dF/dzeta at zeta = 0 for one component of the values, F(zeta) = log sum_a exp(r_a + zeta v_a) (eq. (5)).
///
/// Run: ./run exercise 1.2
#include "notebooks_cpp/exercises/check.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/1_2_attention.hpp"
#else

// Change from here ...
/// dF/dzeta at zeta = 0. @param r exponents q.k_a @param v values, as many
inline double attention(const std::vector<double>& r, const std::vector<double>& v) {
  (void)r, (void)v;
  return 0;
}
// ... to here.

#endif

int main() {
  // The energy itself, to be differentiated by central differences.
  const auto energy = [](const std::vector<double>& r, const std::vector<double>& v, double zeta) {
    double m = -1e300, sum = 0;
    for (std::size_t a = 0; a < r.size(); ++a) m = std::max(m, r[a] + zeta * v[a]);
    for (std::size_t a = 0; a < r.size(); ++a) sum += std::exp(r[a] + zeta * v[a] - m);
    return m + std::log(sum);
  };
  std::mt19937 random(12);
  std::normal_distribution<double> normal;
  for (int i = 0; i < 20; ++i) {
    std::vector<double> r(50), v(50);
    for (double& r_a : r) r_a = 300 + 3 * normal(random);
    for (double& v_a : v) v_a = 2 + normal(random);
    const double h = 1e-3, slope = (energy(r, v, h) - energy(r, v, -h)) / (2 * h);
    expect_near(attention(r, v), slope, 1e-5, "attention and the slope of the energy");
  }
  expect_near(attention({-7}, {3}), 3, 1e-15, "one key gives its value");
  return result();
}
