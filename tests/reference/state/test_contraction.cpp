// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The bits of a merge do not depend on compiler contraction: no product is fused into the following addition
/// (section 5).
///
/// A product below the normal range is rounded, and a fused multiply-add omits that rounding. This file is compiled with the
/// options of tree_attn::state and for a processor that has it.
#include "reference/state/state.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <vector>

namespace {

using namespace tree_attn;

/// a * b, rounded before any further operation.
template <class Real>
Real product(Real a, Real b) {
  volatile Real rounded = a * b;
  return rounded;
}

/// Values whose halves, quarters, ... are subnormal.
template <class Real>
std::vector<Real> small_numbers(unsigned seed, std::size_t n) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<Real> between(1, 2);
  std::vector<Real> elements(n);
  for (Real& x : elements) x = between(random) * std::numeric_limits<Real>::min() * (random() % 2 == 0 ? 1 : -1);
  return elements;
}

}  // namespace

/// @tested{alg_3, Alg. 3}
TEST_CASE_TEMPLATE("contraction: a merge rounds its products", Real, float, double) {
  constexpr std::int64_t kValueDim = 512;
  int n_fused = 0;
  for (int shift = 1; shift < 20; ++shift) {
    std::vector<Real> left = small_numbers<Real>(2 * shift, kValueDim + 2),
                      right = small_numbers<Real>(2 * shift + 1, kValueDim + 2);
    left[kShift] = 0, right[kShift] = static_cast<Real>(-shift);
    std::vector<Real> want = left;
    for (std::size_t i = kSum; i < left.size(); ++i) want[i] = left[i] + product(pow2(right[kShift]), right[i]);
    merge(left.data(), right.data(), kValueDim);
    for (std::size_t i = kSum; i < left.size(); ++i) n_fused += left[i] != want[i];
  }
  CHECK(n_fused == 0);
}
