// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 5.1: the state of one key, with an integer shift.
///
/// Hint: The shift is the smallest integer that is not below the score. A masked key has s - e = NaN unless it is
/// treated before.
#pragma once

#include <cmath>
#include <limits>

struct KeyState {
  float e, D;
};

/// The shift and the weight of a key. @param s its score in base two
inline KeyState key_state(float s) {
  if (s == -std::numeric_limits<float>::infinity()) return {s, 0};  // s - e would be NaN
  const float e = std::ceil(s);
  return {e, std::exp2(s - e)};
}
