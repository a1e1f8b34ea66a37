// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 8.1: a sum whose bits do not depend on the cut.
///
/// Expected: The F32 sum at the root of the canonical tree over positions 0 .. N - 1, a power of two: the same bits for the
/// whole range as for two halves added; error of log2 N roundings.
///
/// Run: ./run exercise 8.1
#include "notebooks_cpp/exercises/check.hpp"

#include <cmath>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/8_1_tree_sum.hpp"
#else

// Change from here ...
/// The sum of x[begin], ..., x[end - 1]. @pre end - begin is a power of two that divides begin
inline float tree_sum(const std::vector<float>& x, std::size_t begin, std::size_t end) {
  float sum = 0;
  for (std::size_t a = begin; a < end; ++a) sum += x[a];  // A chain: N roundings, and bits that know where it began.
  return sum;
}
// ... to here.

#endif

int main() {
  const std::size_t N = 1 << 20;
  std::mt19937 random(81);
  std::vector<float> x(N);
  double exact = 0;
  for (float& x_a : x) x_a = float(random() % (1 << 20)) / (1 << 20), exact += double(x_a);
  const float whole = tree_sum(x, 0, N);
  expect_near(double(whole), exact, 20 * 0x1p-24, "the error is at most that of 20 roundings");
  expect_bits(tree_sum(x, 0, N / 2) + tree_sum(x, N / 2, N), whole, "two ranks have the bits of one");
  const float quarters[] = {tree_sum(x, 0, N / 4), tree_sum(x, N / 4, N / 2), tree_sum(x, N / 2, 3 * N / 4),
                            tree_sum(x, 3 * N / 4, N)};
  expect_bits((quarters[0] + quarters[1]) + (quarters[2] + quarters[3]), whole, "four ranks have the bits of one");
  std::vector<float> ones(1 << 25, 1);
  expect_equal(tree_sum(ones, 0, ones.size()), float(1 << 25), "2^25 ones, where a chain stops at 2^24");
  return result();
}
