// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 14.1: one key of a stream that cannot overflow.
///
/// Expected: after every key m is the largest score so far, D the sum of exp(r_a - m) and n that of exp(r_a - m) v_a, so
/// z = n / D for any scores; a key with score -inf changes nothing, also as the first one; NaN stays NaN.
///
/// Run: ./run exercise 14.1
#include "notebooks_cpp/exercises/check.hpp"

#include <cmath>
#include <limits>
#include <random>
#include <string>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/14_1_stream.hpp"
#else

// Change from here ...
/// The two sums over the keys so far, relative to exp(m).
struct Stream {
  double m = -std::numeric_limits<double>::infinity(), n = 0, D = 0;
};

/// Adds one key. @param r its score @param v its value
inline void add(Stream& stream, double r, double v) {
  // Eq. (1) to eq. (3) without a shift. When m grows, what becomes of the sums over the earlier keys?
  stream.m = 0;
  stream.n += std::exp(r) * v;
  stream.D += std::exp(r);
}
// ... to here.

#endif

int main() {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const double offset : {0., 1000., -1000.}) {
    // Multiples of 2^-20, so that adding the offset is exact.
    std::mt19937 random(141);
    Stream stream;
    double largest = -inf, n = 0, D = 0;
    for (int i = 0; i < 200; ++i) {
      const double r = double(random() % (1 << 24)) / (1 << 20), v = 1 + double(random() % 1000) / 1000;
      add(stream, offset + r, v);
      largest = std::fmax(largest, r), n += std::exp(r) * v, D += std::exp(r);
      const std::string where = " after key " + std::to_string(i) + " with scores near " + std::to_string(int(offset));
      expect_equal(stream.m, offset + largest, "m is the largest score" + where);
      expect_near(stream.n / stream.D, n / D, 1e-13, "z" + where);
      expect_near(stream.D, D / std::exp(largest), 1e-13, "D" + where);
    }
  }

  Stream masked;
  add(masked, -inf, 7);
  expect(masked.m == -inf && masked.n == 0 && masked.D == 0, "a masked key alone leaves the sums empty: m, n and D",
         masked.m, masked.n, masked.D);
  add(masked, -3, 2);
  add(masked, -inf, 7);
  expect(masked.m == -3 && masked.n == 2 && masked.D == 1,
         "masked keys before and after a key change nothing: m = -3, n = 2, D = 1", masked.m, masked.n, masked.D);

  Stream spoilt;
  add(spoilt, 1, 1), add(spoilt, nan, 1), add(spoilt, 2, 1);
  expect(std::isnan(spoilt.n / spoilt.D), "a NaN score gives NaN, also with a larger score after it", spoilt.n / spoilt.D);
  Stream first;
  add(first, nan, 1), add(first, 2, 1);
  expect(std::isnan(first.n / first.D), "also if it is the first score", first.n / first.D);
  return result();
}
