// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 7.2: the causal edge on a shard.
///
/// Hint: Query j sees the positions below one edge. A shard shows as many keys as lie between its begin and that edge:
/// at least 0, at most all.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

/// Number of keys that query j of l sees, of the n keys of a shard, at positions begin, ..., begin + n - 1 of a sequence of
/// N.
inline long n_seen(long N, long l, long j, long begin, long n) {
  const long edge = N - l + 1 + j;  // The first position that it does not see; a shard may lie on either side of it.
  return std::clamp(edge - begin, 0L, n);
}
