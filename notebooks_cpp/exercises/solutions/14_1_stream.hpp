// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 14.1: one key of a stream that cannot overflow.
///
/// Hint: The new m is the larger of m and r. Both sums are multiplied by exp(old m - new m), and the key enters with
/// exp(r - new m). A first key of -inf gives NaN unless it is left out; std::fmax(m, NaN) is m.
#pragma once

#include <cmath>
#include <limits>

/// The two sums over the keys so far, relative to exp(m).
struct Stream {
  double m = -std::numeric_limits<double>::infinity(), n = 0, D = 0;
};

/// Adds one key. A larger score scales the earlier sums down; a smaller one is weighted down itself.
/// @param r its score @param v its value
inline void add(Stream& stream, double r, double v) {
  if (r == -std::numeric_limits<double>::infinity()) return;  // m - m would be NaN if it is the first
  const double m = std::fmax(stream.m, r);                    // not NaN: a NaN score enters by its weight
  const double old = std::exp(stream.m - m), s = std::exp(r - m);
  stream.n = old * stream.n + s * v;
  stream.D = old * stream.D + s;
  stream.m = m;
}
