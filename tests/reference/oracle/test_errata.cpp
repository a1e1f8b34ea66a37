// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Errors in version 4 of the paper, each with a counter-example (docs/errata.md). Those of C.2, of Alg. 1 and of
/// counted steps are in other tests.
#include "reference/energy/moments.hpp"
#include "reference/oracle/algorithms.hpp"
#include "reference/oracle/cost_model.hpp"
#include "tests/reference/energy/one_query.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <random>
#include <vector>

namespace errata_test {

using namespace tree_attn;
using test::random_matrix;

constexpr unsigned kSeed = 13;
constexpr double kStep = 1e-4;

/// @tested{slip_1, slip 1}
TEST_CASE("errata 1: two values mu - 1 and mu + 1 have second moment 1 + mu^2, and the second derivative of F is 1") {
  const double mu = 3;
  const Vector q = Vector::Zero(1), none;
  const Matrix K = Matrix::Zero(2, 1), V = Eigen::Vector2d(mu - 1, mu + 1);
  const auto second_derivative = [&](const auto& f) {
    const Vector step = Vector::Constant(1, kStep);
    return (f(step) - 2 * f(Vector::Zero(1)) + f(-step)) / (kStep * kStep);
  };
  const double Z = partition_function(q, K, V, none);
  const auto F_of = [&](const Vector& zeta) { return energy(q, K, V, zeta); };
  const auto Z_of = [&](const Vector& zeta) { return partition_function(q, K, V, zeta); };
  CHECK(second_derivative(F_of) == doctest::Approx(1).epsilon(1e-6));
  CHECK(second_derivative(Z_of) / Z == doctest::Approx(1 + mu * mu).epsilon(1e-6));
  CHECK(moment(q, K, V, none, std::array<Eigen::Index, 2>{0, 0}) == doctest::Approx(1 + mu * mu).epsilon(1e-14));
}

/// @tested{slip_4, slip 4}
TEST_CASE("errata 4: with one source per key, the derivative in one source is one term of attention") {
  std::mt19937 random(kSeed);
  const Vector q = random_matrix(random, 4, 1);
  const Matrix K = random_matrix(random, 5, 4), V = random_matrix(random, 5, 3);
  const Vector P = attention_probabilities(q, K), z = attention_mean(q, K, V);

  // log sum_a exp(q.k_a + zeta_a.v_a), as eq. (35) is printed.
  const auto printed = [&](const Matrix& Zeta) { return log_sum_exp(K * q + V.cwiseProduct(Zeta).rowwise().sum()); };
  const Matrix sum = test::slopes(printed, Matrix::Zero(5, 3), kStep);
  for (Eigen::Index a = 0; a < 5; ++a) {
    CHECK((sum.row(a).transpose() - P(a) * V.row(a).transpose()).norm() < 1e-7);
    CHECK((sum.row(a).transpose() - z).norm() > 1e-2);
  }
  CHECK((sum.colwise().sum().transpose() - z).norm() < 1e-7);
}

/// @tested{slip_9, slip 9}
TEST_CASE("errata 9: in the example of 6.3 attention takes 196 us, and sending its keys and values 7 times as long") {
  const CostShape s{.b = 1, .t = 640000 / 8, .d = 2048, .n_h = 16, .p = 8};
  const double bytes = to_bytes(static_cast<double>(ring_hop_volume(s)), 2);
  CHECK(bytes == doctest::Approx(655e6).epsilon(1e-3));
  const double read = bytes / 3.35e12, move = bytes / 450e9;  // H100 memory; NVLink 4.0, one direction
  CHECK(read == doctest::Approx(196e-6).epsilon(3e-3));
  CHECK(move == doctest::Approx(1.46e-3).epsilon(3e-3));
  CHECK(move / read == doctest::Approx(7.4).epsilon(1e-2));
  CHECK(read > 10e-6);
}

/// @tested{slip_10, slip 10}
TEST_CASE("errata 10: volume sent per device and step by ring and tree, and the quotient of the two formulas as printed") {
  for (const std::int64_t p : {2, 4, 8, 128}) {
    const CostShape s{.b = 1, .t = 1000, .d = 2048, .n_h = 16, .p = p};
    // Ring: one shard in each of p - 1 hops. Tree: a ring AllReduce of numel elements in p chunks, with two passes.
    double ring = 0, tree = 0;
    for (std::int64_t hop = 1; hop < p; ++hop) {
      ring += static_cast<double>(ring_hop_volume(s));
      tree += 2 * static_cast<double>(tree_numel(s)) / static_cast<double>(p);
    }
    CHECK(tree_volume(s) == doctest::Approx(tree).epsilon(1e-14));
    CHECK(static_cast<double>(ring_volume(s)) != ring);
    const double N = static_cast<double>(s.t * p), d_h = 128;
    CHECK(ring / tree == doctest::Approx(N / (1 + 2 / d_h)).epsilon(1e-14));
    const double as_printed = static_cast<double>(ring_volume(s)) / tree_volume(s);
    CHECK(as_printed == doctest::Approx(ring / tree * static_cast<double>(p) / static_cast<double>(p - 1)).epsilon(1e-14));
  }
}

/// @tested{slip_12, slip 12}
TEST_CASE("errata 12: the m of Alg. 3 is the largest lse, above that of Alg. 1 by at most log of the keys per device") {
  std::mt19937 random(kSeed);
  const Vector q = random_matrix(random, 4, 1);
  const Matrix V = random_matrix(random, 24, 3);
  const std::vector<std::int64_t> lengths{6, 6, 6, 6};
  const auto largest_lse = [&q](const std::vector<VirtualDevice>& devices) {
    double m = -std::numeric_limits<double>::infinity();
    for (const VirtualDevice& device : devices) m = max_of(m, energy(q, device.K, device.V, Vector()));
    return m;
  };
  // Equal keys: the difference is exactly log 6.
  const std::vector<VirtualDevice> equal = scatter(Matrix::Ones(24, 4), V, lengths);
  CHECK(largest_lse(equal) - tree_energy(q, Vector(), equal).m == doctest::Approx(std::log(6)).epsilon(1e-13));
  // Random keys: it is between 0 and log 6. The outputs of Alg. 3 and of Alg. 2, which has the other m, are equal.
  const std::vector<VirtualDevice> devices = scatter(random_matrix(random, 24, 4), V, lengths);
  const EnergyForward forward = tree_energy(q, Vector(), devices);
  CHECK(largest_lse(devices) > forward.m + 1e-3);
  CHECK(largest_lse(devices) < forward.m + std::log(6));
  CHECK((tree_decode_paper(q, devices).z - tree_energy_gradient(q, devices, forward)).norm() < 1e-14);
}

/// @tested{slip_13, slip 13}
TEST_CASE("errata 13: the n-th moment is n! times the n-th Taylor coefficient of Z over Z") {
  std::mt19937 random(kSeed);
  const Vector q = random_matrix(random, 4, 1), one = Vector::Ones(1);
  const Matrix K = random_matrix(random, 9, 4), V = random_matrix(random, 9, 1);
  double factorial = 1;
  for (int n = 1; n <= 6; ++n) {
    factorial *= n;
    // At zeta = 1 the last term of the series is the Taylor coefficient.
    const double coefficient = moment_series(q, K, V, one, n).value - moment_series(q, K, V, one, n - 1).value;
    const std::vector<Eigen::Index> A(static_cast<std::size_t>(n), 0);
    const double moment_n = moment(q, K, V, Vector(), A);
    CHECK(moment_n == doctest::Approx(factorial * coefficient).epsilon(1e-11));
    if (n >= 2) CHECK(std::abs(moment_n - coefficient) > 1e-3);
  }
}

}  // namespace errata_test
