// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The scale of the scores as two factors: the same score bit for bit, with smaller products.
#include "reference/state/score_scale.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>

using namespace tree_attn;

/// @tested{eq_7, eq. (7)}
TEST_CASE("score scale: a power of two times a factor from 1 to 2 is the whole factor") {
  std::mt19937 random(1400);
  std::uniform_real_distribution<double> exponent(-37.5, 30), sign(-1, 1);
  for (int i = 0; i < 10000; ++i) {
    const double scale = std::copysign(std::pow(10, exponent(random)), sign(random));
    CAPTURE(scale);
    const ScoreScale parts = split_scale(scale);
    int a = 0;
    REQUIRE(std::frexp(parts.query, &a) == 0.5f);
    CHECK(parts.query <= 1);
    CHECK(std::abs(parts.score) >= 1);
    if (parts.query < 1) CHECK(std::abs(parts.score) <= 2);
    CHECK(parts.query * parts.score == static_cast<float>(kLog2E * scale));
    // The score has the same bits for any product in the normal range.
    const float dot = std::ldexp(static_cast<float>(sign(random)), 60);
    CHECK(parts.score * (parts.query * dot) == static_cast<float>(kLog2E * scale) * dot);
  }
}

TEST_CASE("score scale: zero, scales too small to split, scales of 1 and more, Inf and NaN") {
  CHECK(split_scale(0).query == 1);
  CHECK(split_scale(0).score == 0);
  CHECK(split_scale(1e-40).query == 0x1p-126f);
  CHECK(split_scale(1e-40).score == doctest::Approx(kLog2E * 1e-40 * 0x1p126).epsilon(1e-7));
  CHECK(split_scale(-1e-300).query == 0x1p-126f);
  CHECK(split_scale(-1e-300).score == 0);
  CHECK(split_scale(1e300).query == 1);
  CHECK(std::isinf(split_scale(1e300).score));
  CHECK(split_scale(std::numeric_limits<double>::quiet_NaN()).query == 1);
  CHECK(std::isnan(split_scale(std::numeric_limits<double>::quiet_NaN()).score));
}
