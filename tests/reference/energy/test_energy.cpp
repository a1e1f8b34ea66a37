// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Attention is the gradient of an energy, compared with finite differences of the energy.
#include "reference/energy/energy.hpp"
#include "tests/reference/energy/one_query.hpp"
#include "tests/support/message.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace energy_test {

using namespace tree_attn;
using test::slopes;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr unsigned kSeed = 15;

/// One query over N random keys.
struct Workload : test::OneQuery {
  explicit Workload(Eigen::Index N) : OneQuery(N, 7, 5, 0, kSeed) {}
};

/// @tested{obs_1, Obs. 1}
/// @tested{eq_5, eq. (5)}
/// @tested{eq_6, eq. (6)}
/// @tested{eq_7, eq. (7)}
/// @tested{eq_15, eq. (15)}
/// @tested{eq_23, eq. (23)}
TEST_CASE("energy: its gradient is attention at zeta = 0, and the closed form at any zeta (central differences)") {
  for (const Eigen::Index N : {1, 2, 33}) {
    Workload p(N);
    for (const double size : {0.0, 0.1, 1.0, 3.0}) {
      const Vector zeta = size * p.matrix(5, 1);
      const Vector gradient = energy_gradient(p.q, p.K, p.V, zeta);
      const Matrix slope = slopes([&](const Matrix& at) { return energy(p.q, p.K, p.V, at.col(0)); }, zeta);
      CHECK((gradient - slope).cwiseAbs().maxCoeff<Eigen::PropagateNaN>() < 1e-8);
      if (size == 0) CHECK((gradient - attention_mean(p.q, p.K, p.V)).norm() < 1e-14);
    }
  }
}

/// @tested{eq_16, eq. (16)}
/// @tested{eq_17, eq. (17)}
/// @tested{eq_18, eq. (18)}
TEST_CASE("energy: attention is the mean of the values under the attention probabilities") {
  const Workload p(20);
  const Vector P = attention_probabilities(p.q, p.K);
  const double Z = partition_function(p.q, p.K, p.V, Vector());
  CHECK(P.sum() == doctest::Approx(1).epsilon(1e-14));
  CHECK((P.array() - (p.K * p.q).array().exp() / Z).abs().maxCoeff<Eigen::PropagateNaN>() < 1e-14);
  CHECK((attention_mean(p.q, p.K, p.V) - p.V.transpose() * P).norm() < 1e-13);
}

/// @tested{eq_19, eq. (19)}
/// @tested{eq_24, eq. (24)}
TEST_CASE("energy: is the logarithm of the partition function") {
  Workload p(20);
  for (int i = 0; i < 5; ++i) {
    const Vector zeta = p.matrix(5, 1);
    CHECK(energy(p.q, p.K, p.V, zeta) == doctest::Approx(std::log(partition_function(p.q, p.K, p.V, zeta))).epsilon(1e-14));
  }
  CHECK(energy(p.q, p.K, p.V, Vector()) == energy(p.q, p.K, p.V, Vector::Zero(5)));
}

/// @tested{eq_25, eq. (25)}
/// @tested{eq_26, eq. (26)}
/// @tested{eq_35, eq. (35)}
TEST_CASE("causal energy: the sum over the queries, each with its own source over the keys up to its own position") {
  Workload p(9);
  for (const Eigen::Index l : {9, 4, 1}) {
    const Matrix Q = p.matrix(l, 7), Zeta = p.matrix(l, 5), gradient = causal_energy_gradient(Q, p.K, p.V, Zeta);
    double sum = 0;
    for (Eigen::Index i = 0; i < l; ++i) {
      const Eigen::Index n = 9 - l + i + 1;
      const Vector q = Q.row(i).transpose(), zeta = Zeta.row(i).transpose();
      sum += energy(q, p.K.topRows(n), p.V.topRows(n), zeta);
      CHECK((gradient.row(i).transpose() - energy_gradient(q, p.K.topRows(n), p.V.topRows(n), zeta)).norm() < 1e-13);
    }
    CHECK(causal_energy(Q, p.K, p.V, Zeta) == doctest::Approx(sum).epsilon(1e-14));
  }
}

TEST_CASE("causal energy: a query before the first key sees no key") {
  Workload p(2);
  const Matrix Q = p.matrix(3, 7), Zeta = Matrix::Zero(3, 5);
  CHECK(causal_energy(Q, p.K, p.V, Zeta) == -kInf);
  CHECK(causal_energy_gradient(Q, p.K, p.V, Zeta).row(0).norm() == 0);
  CHECK((causal_energy_gradient(Q, p.K, p.V, Zeta).row(1) - p.V.row(0)).norm() < 1e-14);
}

/// @tested{eq_29, eq. (29)}
TEST_CASE("output projection: applied to the values, it commutes with the gradient") {
  Workload p(10);
  const Matrix W_O = p.matrix(11, 5);
  const Vector projected = attention_mean(p.q, p.K, fold_output_projection(p.V, W_O));
  CHECK((projected - W_O * attention_mean(p.q, p.K, p.V)).norm() < 1e-12);
}

TEST_CASE("energy: edges") {
  Workload p(4);
  const Vector zeta = p.matrix(5, 1);

  // No keys.
  CHECK(energy(p.q, p.K.topRows(0), p.V.topRows(0), zeta) == -kInf);
  CHECK(energy_gradient(p.q, p.K.topRows(0), p.V.topRows(0), zeta).norm() == 0);
  CHECK(partition_function(p.q, p.K.topRows(0), p.V.topRows(0), zeta) == 0);

  // A key with score -inf is masked: its value may be anything.
  Matrix K = p.K, V = p.V;
  K.row(1) = -kInf * p.q.cwiseSign().transpose();
  V.row(1).setConstant(kNaN);
  Matrix K_rest(3, 7), V_rest(3, 5);
  K_rest << p.K.row(0), p.K.bottomRows(2);
  V_rest << p.V.row(0), p.V.bottomRows(2);
  CHECK(energy(p.q, K, V, zeta) == doctest::Approx(energy(p.q, K_rest, V_rest, zeta)).epsilon(1e-14));
  CHECK((energy_gradient(p.q, K, V, zeta) - energy_gradient(p.q, K_rest, V_rest, zeta)).norm() < 1e-14);

  // Scores of +inf and NaN.
  for (const double bad : {kInf, kNaN}) {
    K = p.K;
    K.row(2) = bad * p.q.cwiseSign().transpose();
    CHECK(std::isnan(energy(p.q, K, p.V, zeta)));
    CHECK(energy_gradient(p.q, K, p.V, zeta).array().isNaN().all());
  }

  // Without a source, an Inf value affects only its own component.
  V = p.V;
  V(0, 3) = kInf;
  const Vector z = attention_mean(p.q, p.K, V);
  CHECK(z(3) == kInf);
  CHECK((z.head(3) - attention_mean(p.q, p.K, p.V).head(3)).norm() < 1e-14);

  // Huge logits: Z overflows, F and its gradient do not.
  CHECK(partition_function(1e6 * p.q, p.K, p.V, zeta) == kInf);
  CHECK(std::isfinite(energy(1e6 * p.q, p.K, p.V, zeta)));
  CHECK(energy_gradient(1e6 * p.q, p.K, p.V, zeta).norm() > 0.1);

  // Shapes that do not match.
  CHECK_INVALID(energy(p.q.head(3), p.K, p.V, zeta), "exponents: q has length 3, a key 7");
  CHECK_THROWS_AS(energy(p.q, p.K, p.V.topRows(3), zeta), std::invalid_argument);
  CHECK_THROWS_AS(energy(p.q, p.K, p.V, zeta.head(2)), std::invalid_argument);
  CHECK_INVALID(mean_value(p.K * p.q, p.V.topRows(3)), "mean_value: 4 exponents, 3 values");
  CHECK_INVALID(attention_probabilities(p.q.head(3), p.K), "q has length 3, a key 7");
  const Matrix Q = p.matrix(3, 7), Zeta = p.matrix(3, 5);
  CHECK_INVALID(causal_energy(Q, p.K, p.V, Zeta.topRows(2)), "3 queries, 2 sources");
  CHECK_THROWS_AS(causal_energy_gradient(Q, p.K, p.V, Zeta.topRows(2)), std::invalid_argument);
  CHECK_THROWS_AS(fold_output_projection(p.V, p.matrix(11, 4)), std::invalid_argument);
}

}  // namespace energy_test
