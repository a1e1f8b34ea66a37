// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 10.1: who holds a leaf in the dealt order.
///
/// Hint: The rank of leaf j is its low bits, in reverse order.
#pragma once

#include <cstdint>
#include <vector>

/// The rank that holds leaf j. @param a log2 of the number of ranks
inline int owner(std::int64_t j, int a) {
  int rank = 0;
  for (int i = 0; i < a; ++i) rank = rank << 1 | int(j >> i & 1);
  return rank;
}
