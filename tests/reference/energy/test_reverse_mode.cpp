// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The tape: the derivative of every operation, compared with differences.
#include "tree_attn/reference/energy/energy.hpp"
#include "tree_attn/reference/energy/reverse_mode.hpp"

#include <Eigen/Core>
#include <doctest/doctest.h>

#include <cmath>

using namespace tree_attn;

TEST_CASE("reverse mode: the derivative of every operation agrees with differences") {
  using Taped = Reverse<double>;
  const auto f = [](auto x, auto y) {
    using std::exp, std::log;
    auto t = exp(x * y) / (y + x) - log(y) * 3.0 + (-x) / 2.0;
    t += x, t -= 2.0 * y, t *= y, t /= x;
    return t * t + 1 / y;
  };
  const Vector at = Eigen::Vector2d(0.7, 1.9);
  const VectorOf<Taped> x = Taped::variables(at);
  const Taped result = f(x(0), x(1));
  CHECK(result.value() == f(at(0), at(1)));
  const Vector slope = Taped::gradient(result, 2);
  constexpr double h = 1e-6;
  CHECK(slope(0) == doctest::Approx((f(at(0) + h, at(1)) - f(at(0) - h, at(1))) / (2 * h)).epsilon(1e-8));
  CHECK(slope(1) == doctest::Approx((f(at(0), at(1) + h) - f(at(0), at(1) - h)) / (2 * h)).epsilon(1e-8));

  // A constant has derivative 0, a variable 1. The contributions of repeated uses add up.
  const VectorOf<Taped> y = Taped::variables(at);
  CHECK(Taped::gradient(Taped(3.0) * Taped(2), 2) == Vector(Eigen::Vector2d(0, 0)));
  CHECK(Taped::gradient(y(1), 2) == Vector(Eigen::Vector2d(0, 1)));
  CHECK(Taped::gradient(y(0) + y(0), 2) == Vector(Eigen::Vector2d(2, 0)));
}
