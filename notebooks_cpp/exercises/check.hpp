// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Checks of an exercise: claims that are counted, and the status of the program.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

namespace tree_attn::exercise {

/// Faults of which an exercise prints no more.
inline constexpr std::size_t kMostFaults = 5;

/// A text without the coordinates of blocks and threads, "(0, 0, 0)": two reports that differ in them alone are one fault.
inline std::string without_places(std::string text) {
  for (std::size_t begin = text.find('('); begin != std::string::npos; begin = text.find('(', begin + 1)) {
    const std::size_t end = text.find_first_not_of("0123456789, ", begin + 1);
    if (end != std::string::npos && text[end] == ')') text.erase(begin, end + 1 - begin);
  }
  return text;
}

/// A claim that did not hold, and under how many seeds of the emulator.
struct Fault {
  std::string text;
  unsigned n_seeds = 0, last_seed = 0;
};

/// The claims of one exercise so far.
struct Claims {
  int n = 0, n_failed = 0;
  std::vector<Fault> faults;
  bool is_seeded = false;  ///< faults are printed after the last seed
  unsigned seed = 0;
};
inline Claims claims;

/// A number with the digits that tell it from its neighbours.
template <class T>
std::string shown(T x) {
  if constexpr (std::is_floating_point_v<T>) {
    char text[40];
    std::snprintf(text, sizeof text, "%.*g", std::numeric_limits<T>::max_digits10, double(x));
    return text;
  } else {
    return std::to_string(x);
  }
}

/// Counts a claim, and prints it if it does not hold: the first few of them, each once.
inline void claim(bool holds, const std::string& text) {
  ++claims.n;
  if (holds) return;
  ++claims.n_failed;
  for (Fault& fault : claims.faults) {
    if (without_places(fault.text) != without_places(text)) continue;
    fault.n_seeds += fault.last_seed != claims.seed, fault.last_seed = claims.seed;
    return;
  }
  if (claims.faults.size() > kMostFaults) return;
  claims.faults.push_back({text, 1, claims.seed});
  if (!claims.is_seeded && claims.faults.size() <= kMostFaults) std::printf("  does not hold: %s\n", text.c_str());
}

/// Counts a claim about values, and prints them if it does not hold.
template <class First, class... More>
void expect(bool holds, const std::string& text, First got, More... more) {
  std::string values = ": got " + shown(got);
  ((values += ", " + shown(more)), ...);
  claim(holds, text + values);
}

/// Counts the claim that two values are equal.
template <class T>
void expect_equal(T got, std::type_identity_t<T> want, const std::string& what) {
  claim(got == want, what + ": " + shown(got) + ", expected " + shown(want));
}

/// Counts the claim that two lists are equal, and names the first element that differs.
template <class T>
void expect_equal(const std::vector<T>& got, const std::vector<T>& want, const std::string& what) {
  if (got.size() != want.size()) return expect_equal(got.size(), want.size(), what + ", the number of elements");
  std::size_t i = 0;
  while (i + 1 < got.size() && got[i] == want[i]) ++i;
  if (got == want || got.empty())
    claim(got == want, what);
  else
    expect_equal(got[i], want[i], what + ", element " + std::to_string(i));
}

/// Counts the claim that two numbers are equal up to an error relative to the larger one. NaN equals nothing, an infinity
/// itself.
inline void expect_near(double got, double want, double relative, const std::string& what) {
  char text[120];
  std::snprintf(text, sizeof text, ": %.10g, expected %.10g", got, want);
  const double largest = std::fmax(std::abs(got), std::abs(want));
  claim(got == want || (std::isfinite(largest) && std::abs(got - want) <= relative * largest), what + text);
}

/// Tests whether two floats have the same bits.
inline bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

/// Counts the claim that two floats have the same bits.
inline void expect_bits(float got, float want, const std::string& what) {
  claim(same_bits(got, want), what + ": " + shown(got) + ", expected " + shown(want));
}

/// Counts the claim that two lists have the same bits, and names the first element that differs.
inline void expect_bits(const std::vector<float>& got, const std::vector<float>& want, const std::string& what) {
  std::size_t i = 0;
  while (i + 1 < want.size() && i + 1 < got.size() && same_bits(got[i], want[i])) ++i;
  if (got.size() != want.size() || got.empty())
    return expect_equal(got.size(), want.size(), what + ", the number of elements");
  expect_bits(got[i], want[i], what + ", element " + std::to_string(i));
}

/// Prints the outcome. @returns the status of the program: 0 if there are claims and all of them hold
inline int result() {
  if (claims.n_failed > 0)
    std::printf("%d of %d claims do not hold.\n", claims.n_failed, claims.n);
  else
    std::printf("All %d claims hold.\n", claims.n);
  return claims.n_failed > 0 || claims.n == 0 ? 1 : 0;
}

}  // namespace tree_attn::exercise
