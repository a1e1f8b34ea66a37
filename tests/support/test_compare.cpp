// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The comparison and the tensors that all other tests use must fail when they should.
#include "tests/support/compare.hpp"
#include "tests/support/tensors.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <vector>

namespace {

using namespace tree_attn::test;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
const std::vector<double> kWant{1, -2, 3};

}  // namespace

TEST_CASE("larger error: NaN counts as +inf, and no later error hides it") {
  CHECK(larger_error(1, 2) == 2);
  CHECK(larger_error(2, 1) == 2);
  CHECK(larger_error(1, kNaN) == kInf);
  CHECK(larger_error(larger_error(0, -kNaN), 1) == kInf);
}

TEST_CASE("compare: accepts elements within the bound, and reports the largest ratio of error to bound") {
  const Comparison comparison = compare(std::vector<double>{1, -2.05, 3}, kWant, 0.1);
  CHECK(comparison.ok);
  CHECK(comparison.worst == doctest::Approx(0.5).epsilon(1e-14));
  CHECK(comparison.message.ends_with("of the bound, at 1"));
  CHECK(compare(kWant, kWant, 0).ok);
  CHECK(compare(std::vector<float>{1, -2, 3}, kWant, 0).ok);
  CHECK(compare(std::vector<double>{}, std::vector<double>{}, 0).ok);
}

TEST_CASE("compare: fails for a single wrong element") {
  const Comparison comparison = compare(std::vector<double>{1, -2, 3.2}, kWant, {1, 1, 0.1});
  CHECK_FALSE(comparison.ok);
  CHECK(comparison.message.starts_with("element 2 is 3.2"));
  CHECK(compare(std::vector<double>{1, -2, 3.2}, kWant, {0, 0, 0.3}).ok);
  CHECK_FALSE(compare(std::vector<double>{1, -2, 3 + 1e-15}, kWant, 0).ok);
}

TEST_CASE("compare: fails for NaN and Inf, one or all, on either side or on both") {
  for (const double bad : {kNaN, kInf, -kInf}) {
    const std::vector<double> one{1, bad, 3}, all(3, bad);
    CHECK_FALSE(compare(one, kWant, 1e300).ok);
    CHECK_FALSE(compare(all, kWant, kInf).ok);
    CHECK_FALSE(compare(kWant, one, 1e300).ok);
    CHECK_FALSE(compare(all, all, kInf).ok);
  }
}

TEST_CASE("compare: fails for wrong sizes and useless bounds") {
  CHECK_FALSE(compare(std::vector<double>{1, -2}, kWant, 1).ok);
  CHECK_FALSE(compare(std::vector<double>{}, kWant, 1).ok);
  CHECK_FALSE(compare(kWant, kWant, std::vector<double>{1, 1}).ok);
  CHECK_FALSE(compare(kWant, kWant, kNaN).ok);
  CHECK_FALSE(compare(kWant, kWant, -1).ok);
}

TEST_CASE("compare: matches NaN and Inf element by element") {
  const std::vector<double> want{kNaN, kInf, -kInf, 1};
  CHECK(compare(want, want, 0, NonFinite::Match).ok);
  for (const std::vector<double>& got : {std::vector<double>{0, kInf, -kInf, 1},
                                         {kNaN, kNaN, -kInf, 1},
                                         {kNaN, kInf, kInf, 1},
                                         {kNaN, kInf, -kInf, kNaN},
                                         {kNaN, kInf, -kInf, 3}})
    CHECK_FALSE(compare(got, want, 1, NonFinite::Match).ok);
}

TEST_CASE("tensors: as many elements as the shape has, no fewer and no more") {
  const std::vector<float> six(6);
  CHECK(Tensor(six, {1, 2, 1, 3}).bytes.size() == 24);
  CHECK_THROWS_AS(Tensor(six, {1, 2, 1, 2}), std::invalid_argument);
  CHECK_THROWS_AS(Tensor(six, {1, 2, 2, 2}), std::invalid_argument);
}
