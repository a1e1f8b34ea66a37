// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 1.1: the logarithm of a sum of exponentials, for any exponents.
///
/// Expected: log sum_a exp(r_a) without overflow or underflow; -inf if every r_a is -inf, or if there is none (eq. (4), eq.
/// (6)).
///
/// Run: ./run exercise 1.1
#include "notebooks_cpp/exercises/check.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/1_1_log_sum_exp.hpp"
#else

// Change from here ...
/// log sum_a exp(r_a).
inline double log_sum_exp(const std::vector<double>& r) {
  // Right for exponents near 0. What happens at 1000, at -1000, and without a finite exponent?
  double sum = 0;
  for (const double r_a : r) sum += std::exp(r_a);
  return std::log(sum);
}
// ... to here.

#endif

int main() {
  const double inf = std::numeric_limits<double>::infinity();
  expect_near(log_sum_exp({0, 0}), std::log(2), 1e-15, "two exponents of 0");
  expect_near(log_sum_exp({1, 2, 3}), 3.4076059644443806, 1e-15, "1, 2, 3");
  expect_near(log_sum_exp({1000, 1000}), 1000 + std::log(2), 1e-15, "two exponents of 1000");
  expect_near(log_sum_exp({-1000, -1000}), -1000 + std::log(2), 1e-15, "two exponents of -1000");
  expect_near(log_sum_exp({-inf, 5}), 5, 1e-15, "a masked key");
  expect_near(log_sum_exp({-inf, -inf}), -inf, 0, "masked keys only");
  expect_near(log_sum_exp({}), -inf, 0, "no key");
  return result();
}
