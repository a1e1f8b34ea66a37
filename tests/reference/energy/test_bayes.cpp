// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The log-likelihood of appendix C.2: its saddle, and the maximum after the source is eliminated.
#include "reference/energy/bayes.hpp"
#include "tests/reference/energy/one_query.hpp"
#include "tests/support/message.hpp"

#include <doctest/doctest.h>

namespace bayes_test {

using namespace tree_attn;
using test::slopes;

constexpr unsigned kSeed = 30;
constexpr double kStep = 1e-5;

/// l queries over N random keys; the queries include the scale.
struct Workload : test::OneQuery {
  Matrix Q;  ///< the first one is q
  explicit Workload(Eigen::Index N, Eigen::Index d_v = 3, Eigen::Index l = 1)
      : OneQuery(N, 6, d_v, 0, kSeed), Q(matrix(l, 6) / std::sqrt(6.0)) {
    q = Q.row(0).transpose();
  }
};

/// @tested{eq_30, eq. (30)}
TEST_CASE("log-likelihood: F is outside the sum over components, once per query") {
  Workload p(9, 4, 3);
  const Matrix Zeta = p.matrix(3, 4), Z = p.matrix(3, 4);
  double gamma = 0;
  for (Eigen::Index i = 0; i < 3; ++i) {
    const Eigen::Index n = 9 - 3 + i + 1;
    gamma +=
        Z.row(i).dot(Zeta.row(i)) - energy(p.Q.row(i).transpose(), p.K.topRows(n), p.V.topRows(n), Zeta.row(i).transpose());
  }
  CHECK(log_likelihood(p.Q, p.K, p.V, {Zeta, Z}) == doctest::Approx(gamma).epsilon(1e-13));
  CHECK_INVALID(log_likelihood(p.Q, p.K, p.V, {Zeta, p.matrix(3, 2)}), "sources and activations are [3, 2]");
  CHECK(log_likelihood(p.Q, p.K.topRows(2), p.V.topRows(2), {Zeta, Z}) == std::numeric_limits<double>::infinity());
}

/// @tested{eq_31, eq. (31)}
TEST_CASE("log-likelihood: its derivatives in the source and in the activation (central differences)") {
  Workload p(9, 4, 3);
  for (int repeat = 0; repeat < 3; ++repeat) {
    const Matrix Zeta = p.matrix(3, 4), Z = p.matrix(3, 4);
    const SourceAndActivation slope = log_likelihood_gradient(p.Q, p.K, p.V, {Zeta, Z});
    const auto of_Zeta = [&](const Matrix& at) { return log_likelihood(p.Q, p.K, p.V, {at, Z}); };
    const auto of_Z = [&](const Matrix& at) { return log_likelihood(p.Q, p.K, p.V, {Zeta, at}); };
    CHECK((slopes(of_Zeta, Zeta) - slope.Zeta).cwiseAbs().maxCoeff<Eigen::PropagateNaN>() < 1e-7);
    CHECK((slopes(of_Z, Z) - slope.Z).cwiseAbs().maxCoeff<Eigen::PropagateNaN>() < 1e-7);
  }
  CHECK_INVALID(log_likelihood_gradient(p.Q, p.K, p.V, {p.matrix(3, 4), p.matrix(2, 4)}), "activations are [2, 4]");
}

/// @tested{eq_32, eq. (32)}
/// @tested{eq_33, eq. (33)}
/// @tested{slip_2, slip 2}
TEST_CASE("log-likelihood: stationary at zero source and causal attention, and nowhere else") {
  Workload p(9, 4, 3);
  const SourceAndActivation at = stationary_point(p.Q, p.K, p.V);
  const SourceAndActivation slope = log_likelihood_gradient(p.Q, p.K, p.V, at);
  CHECK(slope.Zeta.norm() == 0);
  CHECK(slope.Z.norm() == 0);
  for (Eigen::Index i = 0; i < 3; ++i) {
    const Eigen::Index n = 9 - 3 + i + 1;
    CHECK((at.Z.row(i).transpose() - attention_mean(p.Q.row(i).transpose(), p.K.topRows(n), p.V.topRows(n))).norm() < 1e-14);
  }

  // F subtracted once per component would be stationary at d_v times attention.
  const auto misprinted = [&](const Matrix& Zeta) {
    return at.Z.cwiseProduct(Zeta).sum() - 4 * causal_energy(p.Q, p.K, p.V, Zeta);
  };
  CHECK((slopes(misprinted, at.Zeta) + 3 * at.Z).cwiseAbs().maxCoeff<Eigen::PropagateNaN>() < 1e-7);

  // Elsewhere one of the two derivatives is bounded below: by the distance in zeta, or by the distance in z minus the
  // curvature of F.
  for (int repeat = 0; repeat < 20; ++repeat) {
    const SourceAndActivation off{repeat % 2 * p.matrix(3, 4), at.Z + p.matrix(3, 4)};
    const SourceAndActivation s = log_likelihood_gradient(p.Q, p.K, p.V, off);
    CHECK(s.Zeta.norm() + s.Z.norm() > 0.1);
  }
}

/// @tested{eq_34, eq. (34)}
/// @tested{slip_3, slip 3}
TEST_CASE("log-likelihood: the stationary point is a saddle, with d_v ascending and d_v descending directions") {
  for (const Eigen::Index N : {1, 2, 4, 40}) {  // the covariance is singular for N <= 3
    CAPTURE(N);
    Workload p(N);
    for (const double size : {0.0, 2.0}) {
      const Vector zeta = size * p.matrix(3, 1);
      const Matrix H = log_likelihood_hessian(p.q, p.K, p.V, zeta);
      CHECK(signature(H).n_positive == 3);
      CHECK(signature(H).n_negative == 3);
      CHECK(H.determinant() == doctest::Approx(-1).epsilon(1e-13));  // (-1)^d_v

      // Compare with differences of the gradient, column by column.
      const Vector z = p.matrix(3, 1);
      for (Eigen::Index j = 0; j < 6; ++j) {
        const auto slope_at = [&](double h) {
          Vector x(6);
          x << zeta, z;
          x(j) += h;
          const SourceAndActivation s =
              log_likelihood_gradient(p.Q, p.K, p.V, {x.head(3).transpose(), x.tail(3).transpose()});
          Vector both(6);
          both << s.Zeta.transpose(), s.Z.transpose();
          return both;
        };
        CHECK(((slope_at(kStep) - slope_at(-kStep)) / (2 * kStep) - H.col(j)).norm() < 1e-8);
      }
    }
  }
}

TEST_CASE("signature: an eigenvalue of the size of rounding counts as 0, at any scale") {
  Workload p(1);
  for (int repeat = 0; repeat < 10; ++repeat) {
    // Rank 2 of 6: one positive and one negative eigenvalue, and four that are 0 up to rounding.
    const Vector up = p.matrix(6, 1), down = p.matrix(6, 1);
    const Matrix H = up * up.transpose() - down * down.transpose();
    for (const double unit : {1e-100, 1.0, 1e100}) {
      CHECK(signature(unit * H).n_positive == 1);
      CHECK(signature(unit * H).n_negative == 1);
    }
  }
  CHECK(signature(Matrix::Zero(3, 3)).n_positive == 0);
  CHECK(signature(Matrix::Zero(3, 3)).n_negative == 0);
}

/// @tested{eq_34, eq. (34)}
/// @tested{eq_maxmin, eq. (maxmin)}
/// @tested{slip_3, slip 3}
TEST_CASE("profile likelihood: with the source eliminated, attention is the maximum, and its height is F(0)") {
  Workload p(12);
  const Vector z_star = attention_mean(p.q, p.K, p.V);
  const double top = profile_log_likelihood(p.q, p.K, p.V, z_star);
  CHECK(top == doctest::Approx(energy(p.q, p.K, p.V, Vector())).epsilon(1e-14));
  CHECK(legendre_transform(p.q, p.K, p.V, z_star).zeta.norm() < 1e-8);

  // Every other mean of the values is less likely, nearby by the amount that the covariance predicts.
  for (int repeat = 0; repeat < 50; ++repeat) {
    const Vector P = softmax(2 * p.matrix(12, 1));
    const Vector z = p.V.transpose() * P;
    CHECK(profile_log_likelihood(p.q, p.K, p.V, z) < top - 1e-3 * (z - z_star).squaredNorm());
    CHECK(profile_log_likelihood(p.q, p.K, p.V, z_star + 1e-3 * (z - z_star)) < top);
  }
}

TEST_CASE("Laplace: the width of the peak at attention is the spread of the values") {
  Workload p(12);
  const Gaussian peak = laplace_approximation(p.q, p.K, p.V);
  const LegendrePoint top = legendre_transform(p.q, p.K, p.V, peak.mean);
  CHECK((peak.covariance * top.curvature - Matrix::Identity(3, 3)).norm() < 1e-11);
  CHECK((laplace_approximation(p.q, p.K, p.V, 7).covariance * 7 - peak.covariance).norm() < 1e-14);
  CHECK_THROWS_AS(laplace_approximation(p.q, p.K, p.V, 0), std::invalid_argument);

  // F* equals the quadratic form of the covariance up to third order: half the distance gives an eighth of the error.
  const Vector u = p.matrix(3, 1).normalized();
  const auto error = [&](double h) {
    const double rise = legendre_transform(p.q, p.K, p.V, peak.mean + h * u).value - top.value;
    return rise - 0.5 * h * h * u.dot(top.curvature * u);
  };
  CHECK(error(0.02) / error(0.01) == doctest::Approx(8).epsilon(0.05));
  CHECK(std::abs(error(0.02)) > 1e-8);
}

}  // namespace bayes_test
