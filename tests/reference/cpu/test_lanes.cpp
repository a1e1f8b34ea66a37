// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief 2^x by our own polynomial, against the correctly rounded one over all of its range.
#include "reference/cpu/lanes.hpp"
#include "reference/state/state.hpp"
#include "tests/support/sweep.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tree_attn::test {

using lanes::kPartLanes;
using lanes::Part;

TEST_CASE("exp2: within 1.1 units in the last place for floats from -1 to 0, and 2^0 = 1") {
  // Below 2^-27 the result rounds to 1: that is compared without exp2().
  constexpr std::uint32_t kSmall = 0x32000000, kOne = 0x3F800000;
  REQUIRE(float_of(kSmall) == 0x1p-27f);
  double ulps = 0, relative = 0;  // largest errors
  std::int64_t n = 0, n_out_of_range = 0, n_not_one = 0;
  const std::uint32_t n_apart = takes_all_cases() ? 1 : 16;  // of parts
  for (std::uint32_t bits = 0; bits < kOne; bits += n_apart * kPartLanes) {
    float f[kPartLanes];
    for (std::uint32_t i = 0; i < kPartLanes; ++i) f[i] = -float_of(bits + i);
    const Part y = lanes::exp2_fraction(lanes::load_vector<Part>(f));
    for (int i = 0; i < kPartLanes; ++i) {
      if (bits < kSmall) {
        n_not_one += y[i] != 1;
        continue;
      }
      const double exact = std::exp2(static_cast<double>(f[i])), error = std::abs(static_cast<double>(y[i]) - exact);
      n_out_of_range += !(y[i] >= 0.5f && y[i] <= 1.0f);
      ulps = std::max(ulps, error / (exact < 1 ? 0x1p-24 : 0x1p-23));
      relative = std::max(relative, error / exact * 0x1p24);
      ++n;
    }
  }
  CHECK(n_not_one == 0);
  CHECK(n_out_of_range == 0);
  CHECK(n == (kOne - kSmall) / n_apart);
  CHECK(ulps < 1.1);
  CHECK(relative < 2);  // ErrorTerms::exp_error
  MESSAGE("largest error: " << ulps << " units in the last place, " << relative << " u relative");
  CHECK(lanes::exp2_fraction(lanes::all(0))[0] == 1.0f);
  CHECK(lanes::exp2_fraction(lanes::all(-0.0f))[0] == 1.0f);
  CHECK(std::isnan(lanes::exp2_fraction(lanes::all(std::numeric_limits<float>::quiet_NaN()))[0]));
}

TEST_CASE("exp2: ceil and powers of two are those of a single key") {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float x : {0.0f, -0.0f, 0.3f, -0.3f, 1.0f, -1.0f, 2.5f, -2.5f, 0x1p-149f, -0x1p-149f, 8388607.5f, -8388607.5f,
                        0x1p23f, -0x1p23f, 0x1p24f, 3e38f, -3e38f, kInf, -kInf}) {
    CAPTURE(x);
    CHECK(bits_of(lanes::ceil(lanes::all(x))[0]) == bits_of(key_shift(x)));
  }
  CHECK(std::isnan(lanes::ceil(lanes::all(std::numeric_limits<float>::quiet_NaN()))[0]));
  for (int x = -200; x <= 0; ++x) {
    CAPTURE(x);
    CHECK(bits_of(lanes::pow2(lanes::all(static_cast<float>(x)))[0]) == bits_of(pow2(static_cast<float>(x))));
  }
  for (const float x : {-3e38f, -kInf, std::numeric_limits<float>::quiet_NaN()})
    CHECK(bits_of(lanes::pow2(lanes::all(x))[0]) == bits_of(0.0f));
}

}  // namespace tree_attn::test
