// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 5.2: the merge of two states.
///
/// Hint: Only the side with the lower shift is multiplied, by 2^(low - high). Equal shifts need no factor, also if both
/// are -inf.
#pragma once

#include <cmath>
#include <limits>
#include <random>

/// One element of a state with its shift: 2^e x.
struct State {
  float e, x;
};

/// The state of two disjoint sets. The side with the larger shift is not scaled; the other is scaled by a power of two,
/// which is exact. So the addition is the only rounding, and it does not know its left from its right.
inline State merge(State S, State T) {
  if (S.e == T.e) return {S.e, S.x + T.x};  // Also if both are empty: -inf - -inf would be NaN.
  const State high = S.e > T.e ? S : T, low = S.e > T.e ? T : S;
  return {high.e, high.x + std::exp2(low.e - high.e) * low.x};
}
