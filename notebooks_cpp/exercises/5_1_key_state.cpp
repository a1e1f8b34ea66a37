// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 5.1: the state of one key, with an integer shift.
///
/// Expected: e and D with 2^e D = 2^s, e an integer and 1/2 <= D <= 1; for s = -inf the empty state: e = -inf, D = 0.
///
/// Run: ./run exercise 5.1
#include "notebooks_cpp/exercises/check.hpp"

#include <cmath>
#include <limits>
#include <string>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/5_1_key_state.hpp"
#else

// Change from here ...
struct KeyState {
  float e, D;
};

/// The shift and the weight of a key. @param s its score in base two
inline KeyState key_state(float s) {
  // The paper's form: the score is the shift.
  return {s, 1};
}
// ... to here.

#endif

int main() {
  for (float s = -40; s <= 40; s += 0.37f) {
    const auto [e, D] = key_state(s);
    expect(e == std::floor(e), "the shift of s = " + std::to_string(s) + " is an integer", e);
    expect(D >= 0.5f && D <= 1, "the weight of s = " + std::to_string(s) + " is in [1/2, 1]", D);
    expect_near(double(e) + std::log2(double(D)), double(s), 1e-5, "e + log2 D is the score");
  }
  const auto [e, D] = key_state(-std::numeric_limits<float>::infinity());
  expect(e == -std::numeric_limits<float>::infinity() && D == 0, "a masked key has the empty state -inf, 0", e, D);
  return result();
}
