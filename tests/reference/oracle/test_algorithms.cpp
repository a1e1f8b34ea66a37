// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Algorithms 1, 2 and 3 on virtual devices with shards of any length.
#include "reference/oracle/algorithms.hpp"
#include "tests/reference/energy/one_query.hpp"
#include "tests/support/message.hpp"

#include <doctest/doctest.h>

namespace algorithms_test {

using namespace tree_attn;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr unsigned kSeed = 123;

test::OneQuery random_problem(Eigen::Index N, double sigma = 1) {
  test::OneQuery p(N, 6, 4, 1, kSeed);
  p.q *= sigma * std::sqrt(6.0);
  return p;
}

/// Cuts of 24 keys: equal, unequal, with empty shards at either end and in between, more devices than keys.
const std::vector<std::vector<std::int64_t>> kCuts{
    {24},
    {12, 12},
    {6, 6, 6, 6},
    {1, 23},
    {5, 0, 19},
    {0, 24},
    {24, 0},
    {0, 0, 7, 0, 17, 0},
    {8, 8, 7, 1, 0, 0, 0},
    std::vector<std::int64_t>(24, 1),
    {3, 3, 3, 3, 3, 3, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}};

/// @tested{alg_1, Alg. 1}
/// @tested{slip_5, slip 5}
TEST_CASE("Alg. 1: m + lse is the energy, for every cut, and lse alone lacks m") {
  for (const double sigma : {1.0, 100.0}) {
    const test::OneQuery p = random_problem(24, sigma);
    const Vector r = exponents(p.q, p.K, p.V, p.zeta);
    for (const auto& lengths : kCuts) {
      const EnergyForward got = tree_energy(p.q, p.zeta, scatter(p.K, p.V, lengths));
      CHECK(got.m == doctest::Approx(r.maxCoeff()).epsilon(1e-14));
      CHECK(got.energy == doctest::Approx(energy(p.q, p.K, p.V, p.zeta)).epsilon(1e-13));
      CHECK(std::abs(got.lse - log_sum_exp(r.array() - got.m)) < 1e-14 * (10 + got.m));
      CHECK(std::abs(got.lse - energy(p.q, p.K, p.V, p.zeta)) > 0.1);
    }
  }
}

/// @tested{alg_2, Alg. 2}
TEST_CASE("Alg. 2: the gradient in closed form is the gradient of Alg. 1 (central differences), and attention") {
  for (const double sigma : {1.0, 1e4}) {
    const test::OneQuery p = random_problem(24, sigma);
    for (const auto& lengths : kCuts) {
      const std::vector<VirtualDevice> devices = scatter(p.K, p.V, lengths);
      const Vector z = tree_energy_gradient(p.q, devices, tree_energy(p.q, Vector(), devices));
      CHECK((z - attention_mean(p.q, p.K, p.V)).norm() < 1e-10);
      if (sigma > 1) continue;
      const auto energy_at = [&](const Matrix& at) { return tree_energy(p.q, at.col(0), devices).energy; };
      CHECK((test::slopes(energy_at, Matrix::Zero(4, 1)) - z).cwiseAbs().maxCoeff<Eigen::PropagateNaN>() < 1e-8);
    }
  }
}

/// @tested{alg_3, Alg. 3}
/// @tested{eq_7, eq. (7)}
TEST_CASE("Alg. 3: three AllReduces give attention, for every cut") {
  for (const double sigma : {1.0, 1e4}) {
    const test::OneQuery p = random_problem(24, sigma);
    for (const auto& lengths : kCuts) {
      const TreeDecode got = tree_decode_paper(p.q, scatter(p.K, p.V, lengths));
      CHECK((got.z - attention_mean(p.q, p.K, p.V)).norm() < 1e-12);
      CHECK(got.lse == doctest::Approx(energy(p.q, p.K, p.V, Vector())).epsilon(1e-13));
      CHECK(got.n_all_reduces == 3);
    }
  }
}

/// @tested{alg_1, Alg. 1}
/// @tested{alg_2, Alg. 2}
/// @tested{alg_3, Alg. 3}
TEST_CASE("Alg. 1-3: no keys, or all keys masked") {
  test::OneQuery p = random_problem(3);
  const Matrix unseen = -kInf * p.q.cwiseSign().transpose().replicate(3, 1);
  Matrix nan(3, 4);
  nan.setConstant(kNaN);
  for (const std::vector<VirtualDevice>& devices :
       {scatter(p.K.topRows(0), p.V.topRows(0), std::vector<std::int64_t>{0, 0, 0}),
        scatter(unseen, nan, std::vector<std::int64_t>{1, 0, 2})}) {
    const EnergyForward forward = tree_energy(p.q, p.zeta, devices);
    CHECK(forward.energy == -kInf);
    CHECK(forward.m == -kInf);
    CHECK(tree_energy_gradient(p.q, devices, tree_energy(p.q, Vector(), devices)) == Vector::Zero(4));
    const TreeDecode decode = tree_decode_paper(p.q, devices);
    CHECK(decode.z == Vector::Zero(4));
    CHECK(decode.lse == -kInf);
  }
}

/// @tested{alg_1, Alg. 1}
/// @tested{alg_2, Alg. 2}
/// @tested{alg_3, Alg. 3}
TEST_CASE("Alg. 1-3: NaN and Inf reach the result from every device") {
  for (Eigen::Index bad_key = 0; bad_key < 24; ++bad_key) {
    for (const auto& lengths : kCuts) {
      // A score of NaN or +inf.
      for (const double bad : {kNaN, kInf}) {
        test::OneQuery p = random_problem(24);
        p.K.row(bad_key) = bad * p.q.cwiseSign().transpose();
        const std::vector<VirtualDevice> devices = scatter(p.K, p.V, lengths);
        CHECK(std::isnan(tree_energy(p.q, p.zeta, devices).energy));
        CHECK(tree_energy_gradient(p.q, devices, tree_energy(p.q, Vector(), devices)).array().isNaN().all());
        CHECK(tree_decode_paper(p.q, devices).z.array().isNaN().all());
        CHECK(std::isnan(tree_decode_paper(p.q, devices).lse));
      }
      // A NaN or Inf value affects only its own component, and the value of a masked key none.
      test::OneQuery p = random_problem(24);
      p.V(bad_key, 1) = kInf, p.V(bad_key, 2) = kNaN;
      p.K.row((bad_key + 1) % 24) = -kInf * p.q.cwiseSign().transpose();
      p.V.row((bad_key + 1) % 24).setConstant(kNaN);
      const std::vector<VirtualDevice> devices = scatter(p.K, p.V, lengths);
      for (const Vector& z :
           {tree_energy_gradient(p.q, devices, tree_energy(p.q, Vector(), devices)), tree_decode_paper(p.q, devices).z}) {
        CHECK((std::isfinite(z(0)) && std::isfinite(z(3))));
        CHECK(z(1) == kInf);
        CHECK(std::isnan(z(2)));
      }
    }
  }
}

TEST_CASE("scatter: invalid lengths are refused") {
  const test::OneQuery p = random_problem(5);
  CHECK_INVALID(scatter(p.K, p.V, std::vector<std::int64_t>{}), "scatter: no devices");
  CHECK_INVALID(scatter(p.K, p.V, std::vector<std::int64_t>{6, -1}), "scatter: shard of length -1");
  CHECK_INVALID(scatter(p.K, p.V, std::vector<std::int64_t>{2, 2}), "lengths add up to 4, there are 5 keys and 5 values");
}

}  // namespace algorithms_test
