// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 9.1: a sum over the lanes of a warp.
///
/// Hint: In round i a lane adds the value of the lane whose number differs in bit i. Both lanes of a pair then have one
/// sum.
#pragma once

#include <array>
#include <random>

using Lanes = std::array<float, 32>;

/// Value of this lane after round i = 0 .. 4. @param before value of every lane before the round
inline float after_round(const Lanes& before, int lane, int i) {
  // Both sides of an exchange add the same two numbers, and an addition commutes in bits: so both get the same sum.
  return before[std::size_t(lane)] + before[std::size_t(lane ^ 1 << i)];
}
