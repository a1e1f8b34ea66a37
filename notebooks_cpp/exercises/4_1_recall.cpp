// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 4.1: one step of an associative memory.
///
/// Expected: x <- sum_a softmax(beta X x)_a X_a for stored patterns X_a: attention whose keys and values are the patterns.
///
/// Run: ./run exercise 4.1
#include "notebooks_cpp/exercises/check.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/4_1_recall.hpp"
#else

// Change from here ...
using Pattern = std::vector<double>;

/// One step. @param X the stored patterns @param x where the step starts
inline Pattern recall_step(const std::vector<Pattern>& X, const Pattern& x, double beta) {
  (void)X, (void)beta;
  return x;
}
// ... to here.

#endif

int main() {
  std::mt19937 random(41);
  std::vector<Pattern> X(10, Pattern(64));
  for (Pattern& X_a : X) {
    for (double& x_j : X_a) x_j = random() % 2 == 0 ? -1 : 1;
  }
  // The energy that every step lowers: -log(sum_a exp(beta X_a.x)) / beta + x.x / 2.
  const auto energy = [&X](const Pattern& x, double beta) {
    double m = -1e300, D = 0, square = 0;
    std::vector<double> r;
    for (const Pattern& X_a : X) {
      r.push_back(0);
      for (std::size_t j = 0; j < x.size(); ++j) r.back() += beta * X_a[j] * x[j];
      m = std::max(m, r.back());
    }
    for (const double r_a : r) D += std::exp(r_a - m);
    for (const double x_j : x) square += x_j * x_j;
    return -(m + std::log(D)) / beta + square / 2;
  };
  for (std::size_t a = 0; a < X.size(); ++a) {
    Pattern x = X[a];
    for (std::size_t j = 0; j < 12; ++j) x[j] = -x[j];
    const double before = energy(x, 1);
    x = recall_step(X, x, 1);
    expect(energy(x, 1) < before, "a step lowers the energy, after and before", energy(x, 1), before);
    double distance = 0;
    for (std::size_t j = 0; j < x.size(); ++j) distance = std::max(distance, std::abs(x[j] - X[a][j]));
    expect(distance < 1e-3,
           "pattern " + std::to_string(a) + " with 12 of 64 signs wrong is recalled in one step, up to 0.001", distance);
  }
  const Pattern flat = recall_step(X, Pattern(64, 0), 1);
  double mean = 0;
  for (const Pattern& X_a : X) mean += X_a[0] / 10;
  expect_near(flat[0], mean, 1e-12, "from 0, a step leads to the mean of the patterns");
  return result();
}
