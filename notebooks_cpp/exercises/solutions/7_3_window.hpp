// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 7.3: the leaves that a window reads.
///
/// Hint: The window of the first query begins first. The leaves of the sinks come before that, and no leaf is read
/// twice.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

/// Leaf i has the keys at positions 64 i, ..., 64 i + 63. Query j of l, 0 <= j < l <= N, sees those below N - l + 1 + j:
/// the last w of them, and the first s of the sequence. @pre w >= 1
inline std::vector<long> leaves_read(long N, long l, long w, long s) {
  // The first query's window begins first, and the last query's ends last, with the sequence.
  const long n_leaves = (N + 63) / 64, window = std::max(0L, N - l + 1 - w) / 64;
  const long sinks = std::min((std::min(s, N) + 63) / 64, window);  // What lies in both is read once.
  std::vector<long> leaves;
  for (long i = 0; i < sinks; ++i) leaves.push_back(i);
  for (long i = window; i < n_leaves; ++i) leaves.push_back(i);
  return leaves;
}
