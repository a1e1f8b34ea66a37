// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 4.1: one step of an associative memory.
///
/// Hint: The next state is the mean of the patterns under softmax(beta X x): the same function as attention with K = V =
/// X.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

using Pattern = std::vector<double>;

/// One step. @param X the stored patterns @param x where the step starts
inline Pattern recall_step(const std::vector<Pattern>& X, const Pattern& x, double beta) {
  std::vector<double> r;
  for (const Pattern& X_a : X) {
    r.push_back(0);
    for (std::size_t j = 0; j < x.size(); ++j) r.back() += beta * X_a[j] * x[j];
  }
  const double m = *std::max_element(r.begin(), r.end());
  Pattern next(x.size(), 0);
  double D = 0;
  for (std::size_t a = 0; a < X.size(); ++a) {
    const double weight = std::exp(r[a] - m);
    D += weight;
    for (std::size_t j = 0; j < x.size(); ++j) next[j] += weight * X[a][j];
  }
  for (double& x_j : next) x_j /= D;
  return next;
}
