// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Hopfield retrieval: the energy decreases at every step, and patterns are recalled.
#include "reference/energy/hopfield.hpp"
#include "tests/reference/energy/one_query.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/message.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <random>

namespace hopfield_test {

using namespace tree_attn;

constexpr unsigned kSeed = 1982;

TEST_CASE("hopfield: a step is attention with keys as values, and minus the gradient of E (central differences)") {
  std::mt19937 random(kSeed);
  const Matrix X = random_patterns(9, 5, random);
  for (const double beta : {0.1, 1.0, 20.0}) {
    const Vector xi = 2 * random_patterns(1, 5, random).transpose();
    const Vector next = hopfield_step(X, xi, beta);
    CHECK((next - X.transpose() * softmax(beta * X * xi)).norm() < 1e-14);
    const Matrix slope = test::slopes([&](const Matrix& at) { return hopfield_energy(X, at.col(0), beta); }, xi);
    CHECK((slope - (xi - next)).cwiseAbs().maxCoeff<Eigen::PropagateNaN>() < 1e-7);
    // With equal keys and values a source acts as a query: F depends on beta xi + zeta alone.
    const Vector zeta = random_patterns(1, 5, random).transpose();
    CHECK(energy(beta * xi, X, X, zeta) == doctest::Approx(energy(beta * xi + zeta, X, X, Vector())).epsilon(1e-14));
    CHECK((energy_gradient(beta * xi, X, X, zeta) - hopfield_step(X, xi + zeta / beta, beta)).norm() < 1e-13);
  }
}

TEST_CASE("hopfield: every step lowers the energy by at least half of its squared length") {
  std::mt19937 random(kSeed);
  for (const double beta : {0.5, 3.0, 8.0, 50.0}) {
    for (const Eigen::Index N : {1, 2, 30}) {
      const Matrix X = 2 * random_patterns(N, 6, random);
      const Vector cue = 3 * random_patterns(1, 6, random).transpose();
      const Retrieval course = hopfield_retrieve(X, cue, beta);
      REQUIRE(course.settled);
      REQUIRE(course.energy.size() == static_cast<std::size_t>(course.n_steps + 1));
      Vector xi = cue;
      for (int i = 0; i < course.n_steps; ++i) {
        const Vector next = hopfield_step(X, xi, beta);
        CHECK(course.energy[i + 1] <=
              course.energy[i] - 0.5 * (next - xi).squaredNorm() + 1e-14 * std::abs(course.energy[i]));
        xi = next;
      }
      // A fixed point: one more step does not move the state.
      CHECK((hopfield_step(X, course.xi, beta) - course.xi).norm() < 1e-7);
      CHECK(course.P.sum() == doctest::Approx(1).epsilon(1e-14));
    }
  }
}

TEST_CASE("hopfield: large beta finds one pattern, moderate beta the mean of a cluster, small beta the mean of all") {
  std::mt19937 random(kSeed);
  // Four clusters of five patterns, each within 0.2 of a centre.
  const Matrix centres = random_patterns(4, 16, random);
  Matrix X(20, 16);
  for (Eigen::Index a = 0; a < 20; ++a) X.row(a) = centres.row(a / 5) + 0.2 * random_patterns(1, 16, random);
  const auto settle = [&](double beta) { return hopfield_retrieve(X, X.row(7).transpose(), beta); };
  const auto n_effective = [&](double beta) { return n_effective_patterns(X, settle(beta).xi, beta); };

  CHECK(n_effective(500) == doctest::Approx(1).epsilon(0.01));
  CHECK((settle(500).xi - X.row(7).transpose()).norm() < 1e-3);
  CHECK(n_effective(12) == doctest::Approx(5).epsilon(0.1));
  CHECK((settle(12).xi - X.middleRows(5, 5).colwise().mean().transpose()).norm() < 0.05);
  CHECK(n_effective(0.1) == doctest::Approx(20).epsilon(0.01));
  CHECK((settle(0.1).xi - X.colwise().mean().transpose()).norm() < 0.05);
}

TEST_CASE("hopfield: keys recall separate values, and without iteration the recall is attention") {
  std::mt19937 random(kSeed);
  const Matrix X = random_patterns(100, 24, random), Y = random_patterns(100, 3, random);
  double settled_error = 0, attention_error = 0;
  for (Eigen::Index a = 0; a < 100; ++a) {
    const Vector cue = X.row(a).transpose() + 0.5 * random_patterns(1, 24, random).transpose();
    CHECK((hopfield_recall(X, Y, cue, 24, 0) - attention_mean(24 * cue, X, Y)).norm() == 0);
    attention_error = test::larger_error(attention_error, (hopfield_recall(X, Y, cue, 24, 0) - Y.row(a).transpose()).norm());
    settled_error = test::larger_error(settled_error, (hopfield_recall(X, Y, cue, 24) - Y.row(a).transpose()).norm());
  }
  MESSAGE("largest error of a recalled value: attention ", attention_error, ", converged ", settled_error);
  CHECK(settled_error < 0.02);
  CHECK(attention_error > 3 * settled_error);
}

TEST_CASE("hopfield: edges") {
  std::mt19937 random(kSeed);
  const Matrix X = random_patterns(3, 4, random);
  const Vector xi = Vector::Ones(4);
  CHECK(hopfield_energy(X.topRows(0), xi, 1) == std::numeric_limits<double>::infinity());
  CHECK(hopfield_step(X.topRows(0), xi, 1).norm() == 0);
  CHECK_INVALID(hopfield_retrieve(X.topRows(0), xi, 1), "hopfield_retrieve: no patterns");
  CHECK_INVALID(hopfield_energy(X, xi, 0), "hopfield_energy: beta is 0.000000");
  CHECK_THROWS_AS(hopfield_retrieve(X, xi.head(2), 1), std::invalid_argument);
  CHECK_FALSE(hopfield_retrieve(X, xi, 1, 0, 3).settled);
  CHECK(hopfield_retrieve(X, xi, 1, 0, 3).n_steps == 3);

  // A capacity limited by n_max is the last N tried (2, 3, 4, 5, 7, 9, 12, 15, 19). A capacity of no patterns is 1.
  CapacityTrial trial;
  trial.beta = 50;
  trial.n_max = 20;
  trial.n_trials = 3;
  CHECK(hopfield_capacity(16, trial, random) == doctest::Approx(19).epsilon(1e-14));
  trial.beta = 0.01;
  CHECK(hopfield_capacity(16, trial, random) == doctest::Approx(1).epsilon(1e-14));
}

}  // namespace hopfield_test
