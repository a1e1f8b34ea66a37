// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Moments, cumulants and entropy, compared with loops, with each other, and with differences of Z and F; the Taylor
/// series of Z with its remainder.
#include "reference/energy/moments.hpp"
#include "tests/reference/energy/one_query.hpp"
#include "tests/support/message.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace moments_test {

using namespace tree_attn;
using Eigen::Index;
using test::tuples;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr unsigned kSeed = 20;
constexpr Index kQueryDim = 6, kValueDim = 3;

struct Workload : test::OneQuery {
  explicit Workload(Index N, double size_of_zeta = 0, unsigned seed = kSeed)
      : OneQuery(N, kQueryDim, kValueDim, size_of_zeta, seed) {}
};

/// d^n f / dx_A1 ... dx_An at x by nested central differences.
template <class Function>
double difference(const Function& f, const Vector& x, std::span<const Index> A, double h) {
  if (A.empty()) return f(x);
  const Vector step = h * Vector::Unit(x.size(), A[0]);
  return (difference(f, x + step, A.subspan(1), h) - difference(f, x - step, A.subspan(1), h)) / (2 * h);
}

/// @tested{eq_20, eq. (20)}
/// @tested{eq_22, eq. (22)}
TEST_CASE("moments: the n-th derivatives of Z over Z are the n-th moments, at any zeta (central differences)") {
  for (const double size : {0.0, 0.7}) {
    const Workload p(15, size);
    for (int n = 0; n <= 4; ++n) {
      const double h = std::array{1e-5, 1e-5, 1e-3, 4e-3, 1e-2}[static_cast<std::size_t>(n)];
      for (const std::vector<Index>& A : tuples(n, kValueDim)) {
        CAPTURE(n);
        const double want = difference([&](const Vector& at) { return p.Z(at); }, p.zeta, A, h) / p.Z(p.zeta);
        CHECK(std::abs(moment(p.q, p.K, p.V, p.zeta, A) - want) < (n <= 1 ? 1e-8 : n == 2 ? 1e-5 : 2e-3));
      }
    }
  }
}

/// @tested{eq_cov, eq. (cov)}
TEST_CASE("cumulants: the derivatives of F are covariance and third cumulant, at any zeta (central differences)") {
  for (const double size : {0.0, 0.7, 3.0}) {
    const Workload p(15, size);
    const Matrix C = covariance(p.q, p.K, p.V, p.zeta);
    const std::vector<Matrix> kappa = third_cumulant(p.q, p.K, p.V, p.zeta);
    REQUIRE(kappa.size() == kValueDim);
    constexpr double h = 1e-5;
    for (Index A = 0; A < kValueDim; ++A) {
      const Vector step = h * Vector::Unit(kValueDim, A);
      const auto slope = [&](auto f) -> Matrix {
        return (f(p.q, p.K, p.V, p.zeta + step) - f(p.q, p.K, p.V, p.zeta - step)) / (2 * h);
      };
      CHECK((C.col(A) - slope([](auto&&... x) -> Matrix { return energy_gradient(x...); })).norm() < 1e-8);
      CHECK((kappa[static_cast<std::size_t>(A)] - slope([](auto&&... x) -> Matrix { return covariance(x...); })).norm() <
            1e-8);
    }
  }
}

TEST_CASE("covariance: keeps its digits with a mean of 1e6") {
  Workload p(15);
  const Matrix C = covariance(p.q, p.K, p.V, Vector());
  p.V.array() += 1e6;
  CHECK((covariance(p.q, p.K, p.V, Vector()) - C).norm() < 1e-8 * C.norm());
}

TEST_CASE("moments: edges") {
  const Workload p(4, 0.5);
  const std::array<Index, 2> A{0, 2};

  // No keys.
  const Matrix no_K = p.K.topRows(0), no_V = p.V.topRows(0);
  CHECK(moment(p.q, no_K, no_V, p.zeta, A) == 0);
  CHECK(covariance(p.q, no_K, no_V, p.zeta).norm() == 0);
  CHECK(moment_series(p.q, no_K, no_V, p.zeta, 3).value == 0);
  CHECK(entropy(p.q, no_K, no_V, p.zeta) == 0);

  // A key with score -inf is masked: its value may be anything.
  Matrix K = p.K, V = p.V;
  K.row(3) = -kInf * p.q.cwiseSign().transpose();
  V.row(3).setConstant(kNaN);
  const Matrix K_rest = p.K.topRows(3), V_rest = p.V.topRows(3);
  CHECK(moment(p.q, K, V, p.zeta, A) == doctest::Approx(moment(p.q, K_rest, V_rest, p.zeta, A)).epsilon(1e-13));
  CHECK((covariance(p.q, K, V, p.zeta) - covariance(p.q, K_rest, V_rest, p.zeta)).norm() < 1e-13);
  CHECK(entropy(p.q, K, V, p.zeta) == doctest::Approx(entropy(p.q, K_rest, V_rest, p.zeta)).epsilon(1e-13));

  // Scores of +inf and NaN.
  for (const double bad : {kInf, kNaN}) {
    K = p.K;
    K.row(2) = bad * p.q.cwiseSign().transpose();
    CHECK(std::isnan(moment(p.q, K, p.V, p.zeta, A)));
    CHECK(covariance(p.q, K, p.V, p.zeta).array().isNaN().all());
    CHECK(std::isnan(entropy(p.q, K, p.V, p.zeta)));
    CHECK(std::isnan(moment_series(p.q, K, p.V, p.zeta, 2).value));
    CHECK(std::isnan(moment_series(p.q, K, p.V, p.zeta, 2).remainder));
  }

  // Without a source, an Inf value affects only the results that it enters.
  V = p.V;
  V(0, 2) = kInf;
  CHECK(std::abs(moment(p.q, p.K, V, Vector(), A)) == kInf);
  CHECK(std::isnan(covariance(p.q, p.K, V, Vector())(2, 2)));
  CHECK((covariance(p.q, p.K, V, Vector()) - covariance(p.q, p.K, p.V, Vector())).topLeftCorner(2, 2).norm() < 1e-15);

  // Components out of range, a negative order, shapes that do not match.
  const std::array<Index, 1> high{3}, low{-1};
  CHECK_INVALID(moment(p.q, p.K, p.V, p.zeta, high), "moment: component 3 of 3");
  CHECK_THROWS_AS(moment(p.q, p.K, p.V, p.zeta, low), std::invalid_argument);
  CHECK_INVALID(moment_series(p.q, p.K, p.V, p.zeta, -1), "moment_series: order -1");
  CHECK_THROWS_AS(covariance(p.q, p.K, p.V, p.zeta.head(2)), std::invalid_argument);
  CHECK(moment_series(p.q, p.K, p.V, Vector(), 3).value == doctest::Approx(1).epsilon(1e-14));
  CHECK(moment_series(p.q, p.K, p.V, Vector(), 3).remainder == 0);
}

/// @tested{eq_21, eq. (21)}
TEST_CASE("series: its terms are the moments over all tuples of components, and its sum is Z(zeta) / Z(0)") {
  const Workload p(15, 0.7);
  double sum = 0, factorial = 1;
  for (int n = 0; n <= 5; ++n) {
    if (n > 0) factorial *= n;
    for (const std::vector<Index>& A : tuples(n, kValueDim)) {
      double product = 1 / factorial;
      for (const Index j : A) product *= p.zeta(j);
      sum += product * moment(p.q, p.K, p.V, Vector(), A);
    }
    CHECK(moment_series(p.q, p.K, p.V, p.zeta, n).value == doctest::Approx(sum).epsilon(1e-13));
  }
  CHECK(moment_series(p.q, p.K, p.V, p.zeta, 40).value == doctest::Approx(p.Z(p.zeta) / p.Z(Vector())).epsilon(1e-13));
}

/// @tested{eq_21, eq. (21)}
TEST_CASE("series: the remainder is within its bound, and the bound is useful") {
  for (unsigned seed = kSeed; seed < kSeed + 10; ++seed) {
    for (const double size : {0.01, 0.3, 2.0}) {
      const Workload p(15, size, seed);
      const double exact = p.Z(p.zeta) / p.Z(Vector());
      for (int order = 0; order <= 60; ++order) {
        CAPTURE(order);
        const TaylorSum sum = moment_series(p.q, p.K, p.V, p.zeta, order);
        const double rounding = 1e-14 * p.Z(p.zeta.cwiseAbs()) / p.Z(Vector()) + 1e-13 * exact;
        CHECK(std::abs(exact - sum.value) <= sum.remainder + rounding);
        // A bound that never decreases would also pass.
        if (order == 60) CHECK(sum.remainder < 1e-12 * exact);
      }
      // To first order the series is the mean: Z(zeta) / Z(0) = 1 + zeta.z, up to a square.
      const TaylorSum line = moment_series(p.q, p.K, p.V, p.zeta, 1);
      CHECK(line.value == doctest::Approx(1 + p.zeta.dot(attention_mean(p.q, p.K, p.V))).epsilon(1e-14));
    }
  }
}

TEST_CASE("series: the bound of a key whose probability underflows and whose exp(x) overflows") {
  // r = (0, -800) and x = (0, 810) at order 0: the second key adds exp(-800 + 810) 810, the first nothing.
  const Vector q = Vector::Constant(1, 1.0), zeta = Vector::Constant(1, 1.0);
  const Matrix K = (Matrix(2, 1) << 0, -800).finished(), V = (Matrix(2, 1) << 0, 810).finished();
  const TaylorSum sum = moment_series(q, K, V, zeta, 0);
  CHECK(sum.value == 1);
  CHECK(sum.remainder == doctest::Approx(810 * std::exp(10)).epsilon(1e-12));
}

TEST_CASE("entropy: -sum P log P, the energy minus the mean exponent, and the derivative of the energy in the temperature") {
  for (const double size : {0.0, 1.0}) {
    const Workload p(15, size);
    const Vector r = exponents(p.q, p.K, p.V, p.zeta), P = softmax(r);
    const double H = entropy(p.q, p.K, p.V, p.zeta);
    CHECK(H == doctest::Approx(-(P.array() * P.array().log()).sum()).epsilon(1e-13));
    CHECK(H == doctest::Approx(p.F(p.zeta) - P.dot(r)).epsilon(1e-13));
    // Multiply all exponents by beta. The derivative of the energy in beta at 1 is <r>.
    constexpr double h = 1e-5;
    const double slope = (log_sum_exp((1 + h) * r) - log_sum_exp((1 - h) * r)) / (2 * h);
    CHECK(H == doctest::Approx(p.F(p.zeta) - slope).epsilon(1e-8));
  }
}

TEST_CASE("entropy: 0 if one key has all the weight, log N if all weigh the same") {
  const Workload p(16);
  CHECK(entropy(0 * p.q, p.K, p.V, Vector()) == doctest::Approx(std::log(16)).epsilon(1e-14));
  CHECK(entropy(1e6 * p.q, p.K, p.V, Vector()) == 0);
  CHECK(entropy(p.q, p.K.topRows(1), p.V.topRows(1), Vector()) == 0);
  // A key with the lowest finite score has weight 0, and 0 log 0 is 0.
  const Vector one = Vector::Ones(1), ends = Eigen::Vector2d(1.7e308, -1.7e308);
  CHECK(entropy(one, ends, ends, Vector()) == 0);
  // Two keys with equal huge scores give log 2, without the rounding of the score.
  Matrix K = p.K;
  K.row(1) = K.row(0);
  const double sign = p.q.dot(K.row(0)) > 0 ? 1 : -1;
  K.bottomRows(14).setZero();
  CHECK(entropy(sign * 1e9 * p.q, K, p.V, Vector()) == doctest::Approx(std::log(2)).epsilon(1e-12));
}

}  // namespace moments_test
