// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Checks of an exercise: claims that are counted, and the status of the program.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>

namespace tree_attn::exercise {

/// The claims of one exercise so far.
struct Claims {
  int n = 0, n_failed = 0;
};
inline Claims claims;

/// Counts a claim, and prints it if it does not hold: the first few of them.
inline void expect(bool holds, const std::string& claim) {
  ++claims.n;
  if (!holds && ++claims.n_failed <= 5) std::printf("  does not hold: %s\n", claim.c_str());
}

/// Counts the claim that two numbers are equal up to an error relative to the larger one. NaN equals nothing, an infinity
/// itself.
inline void expect_near(double got, double want, double relative, const std::string& what) {
  char text[120];
  std::snprintf(text, sizeof text, ": %.10g, expected %.10g", got, want);
  const double largest = std::fmax(std::abs(got), std::abs(want));
  expect(got == want || (std::isfinite(largest) && std::abs(got - want) <= relative * largest), what + text);
}

/// Tests whether two floats have the same bits.
inline bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

/// Prints the outcome. @returns the status of the program: 0 if there are claims and all of them hold
inline int result() {
  if (claims.n_failed > 0)
    std::printf("%d of %d claims do not hold.\n", claims.n_failed, claims.n);
  else
    std::printf("All %d claims hold.\n", claims.n);
  return claims.n_failed > 0 || claims.n == 0 ? 1 : 0;
}

}  // namespace tree_attn::exercise
