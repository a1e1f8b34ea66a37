// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 5.2: the merge of two states.
///
/// Expected: 2^e D = 2^e_S D_S + 2^e_T D_T with e = max(e_S, e_T): commutative bit for bit, the empty state {-inf, 0}
/// neutral bit for bit, NaN kept.
///
/// Run: ./run exercise 5.2
#include "notebooks_cpp/exercises/check.hpp"

#include <cmath>
#include <limits>
#include <random>
#include <string>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/5_2_merge.hpp"
#else

// Change from here ...
/// One element of a state with its shift: 2^e x.
struct State {
  float e, x;
};

/// The state of two disjoint sets.
inline State merge(State S, State T) {
  (void)T;
  return S;
}
// ... to here.

#endif

int main() {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const State empty{-inf, 0};
  std::mt19937 random(52);
  for (int i = 0; i < 2000; ++i) {
    const auto draw = [&random] {
      return State{float(int(random() % 41) - 20), 0.5f + float(random() % (1 << 20)) / (1 << 18)};
    };
    const State S = draw(), T = draw(), ST = merge(S, T), TS = merge(T, S);
    const double exact = std::ldexp(double(S.x), int(S.e)) + std::ldexp(double(T.x), int(T.e));
    expect_near(std::ldexp(double(ST.x), int(ST.e)), exact, 1e-7, "2^e D is the sum");
    expect_equal(ST.e, std::fmax(S.e, T.e), "the shift is the larger one");
    expect(same_bits(ST.x, TS.x) && same_bits(ST.e, TS.e), "merge(S, T) and merge(T, S) have the same bits", ST.x, TS.x,
           ST.e, TS.e);
    const State left = merge(empty, S), right = merge(S, empty);
    expect(same_bits(left.x, S.x) && same_bits(right.x, S.x) && left.e == S.e && right.e == S.e,
           "the empty state is neutral: merge(empty, S), merge(S, empty), S", left.x, right.x, S.x);
  }
  const State none = merge(empty, empty);
  expect(none.e == -inf && none.x == 0, "two empty states give an empty one, -inf, 0", none.e, none.x);
  const float low_left = merge({0, nan}, {300, 1}).x, low_right = merge({300, 1}, {0, nan}).x;
  expect(std::isnan(low_left) && std::isnan(low_right), "NaN stays NaN, also on the lower side", low_left, low_right);
  return result();
}
