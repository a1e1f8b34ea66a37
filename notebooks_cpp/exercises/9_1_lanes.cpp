// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 9.1: a sum over the lanes of a warp.
///
/// Expected: What a lane holds after round i of a butterfly over 32 lanes (it adds what lane ^ 2^i held before): after five
/// rounds every lane has the same bits.
///
/// Run: ./run exercise 9.1
#include "notebooks_cpp/exercises/check.hpp"

#include <array>
#include <random>
#include <string>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/9_1_lanes.hpp"
#else

// Change from here ...
using Lanes = std::array<float, 32>;

/// Value of this lane after round i = 0 .. 4. @param before value of every lane before the round
inline float after_round(const Lanes& before, int lane, int i) {
  (void)i;
  return before[std::size_t(lane)];
}
// ... to here.

#endif

int main() {
  std::mt19937 random(91);
  for (int trial = 0; trial < 100; ++trial) {
    Lanes lanes;
    double exact = 0;
    for (float& x : lanes) x = float(random() % 100000) / 7, exact += double(x);
    for (int i = 0; i < 5; ++i) {
      const Lanes before = lanes;
      for (int lane = 0; lane < 32; ++lane) lanes[std::size_t(lane)] = after_round(before, lane, i);
    }
    expect_near(double(lanes[0]), exact, 1e-6, "the sum of all lanes");
    for (std::size_t lane = 1; lane < lanes.size(); ++lane)
      expect_bits(lanes[lane], lanes[0], "lane " + std::to_string(lane) + " has the bits of lane 0");
  }
  return result();
}
