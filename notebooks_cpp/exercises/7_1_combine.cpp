// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 7.1: lines 3 to 6 of Alg. 3.
///
/// Expected: z from the output o_r and the lse_r of every device (one component): also if a device, or every device, has no
/// key (o = 0, lse = -inf).
///
/// Run: ./run exercise 7.1
#include "notebooks_cpp/exercises/check.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <string>
#include <vector>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/7_1_combine.hpp"
#else

// Change from here ...
/// z of all devices together. @param o output of each device over its keys @param lse their log-sum-exps; -inf: no key
inline double combine(const std::vector<double>& o, const std::vector<double>& lse) {
  // The mean of the outputs. Which weights are missing?
  double sum = 0;
  for (const double o_r : o) sum += o_r;
  return (void)lse, sum / double(o.size());
}
// ... to here.

#endif

int main() {
  const double inf = std::numeric_limits<double>::infinity();
  std::mt19937 random(71);
  std::normal_distribution<double> normal;
  for (int i = 0; i < 20; ++i) {
    // Shards of 1, 2, ... keys, one of them empty; and attention over all of them.
    std::vector<double> o, lse;
    double n_all = 0, D_all = 0;
    for (int r = 0; r < 6; ++r) {
      double n = 0, D = 0;
      for (int a = 0; a < (r == 2 ? 0 : r + 1); ++a) {
        const double weight = std::exp(3 * normal(random)), v = normal(random);
        D += weight, n += weight * v;
      }
      // The scores of all keys may be moved by 800: attention does not change.
      o.push_back(D > 0 ? n / D : 0), lse.push_back(D > 0 ? std::log(D) + 800 : -inf);
      n_all += n, D_all += D;
    }
    expect_near(combine(o, lse), n_all / D_all, 1e-9, "z of six devices, one of them without keys");
  }
  expect_near(combine({0, 0}, {-inf, -inf}), 0, 0, "no key at all");
  return result();
}
