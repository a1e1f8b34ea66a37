// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 8.1: a sum whose bits do not depend on the cut.
///
/// Hint: Halve the range, add the sum of the left half and that of the right: then the sum of a part is a node of the
/// tree of the whole.
#pragma once

#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

/// The sum of x[begin], ..., x[end - 1]. @pre end - begin is a power of two that divides begin
inline float tree_sum(const std::vector<float>& x, std::size_t begin, std::size_t end) {
  if (end - begin == 1) return x[begin];
  const std::size_t middle = begin + (end - begin) / 2;
  return tree_sum(x, begin, middle) + tree_sum(x, middle, end);
}
