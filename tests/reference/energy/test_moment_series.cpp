// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The Taylor series of Z with its remainder, and the entropy of the attention.
#include "tree_attn/reference/energy/moments.hpp"
#include "tree_attn/tests/reference/energy/one_query.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

namespace moment_series_test {

using namespace tree_attn;
using Eigen::Index;
using test::tuples;

constexpr unsigned kSeed = 21;
constexpr Index kQueryDim = 6, kValueDim = 3;

struct Workload : test::OneQuery {
  explicit Workload(Index N, double size_of_zeta = 0, unsigned seed = kSeed)
      : OneQuery(N, kQueryDim, kValueDim, size_of_zeta, seed) {}
};

/// @tested{eq_21, eq. (21)}
TEST_CASE("series: its terms are the moments over all tuples of components, and its sum is Z(zeta) / Z(0)") {
  CAPTURE(kSeed);
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
  CAPTURE(kSeed);
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
  CAPTURE(kSeed);
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

}  // namespace moment_series_test
