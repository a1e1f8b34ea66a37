// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The Legendre transform of the energy: duality, the nearest distribution, the convex hull and its boundary.
#include "reference/energy/legendre.hpp"
#include "tests/reference/energy/one_query.hpp"
#include "tests/support/message.hpp"

#include <doctest/doctest.h>

namespace legendre_test {

using namespace tree_attn;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr unsigned kSeed = 34;

/// One query over N random keys with scores of standard deviation `spread`.
struct Workload : test::OneQuery {
  explicit Workload(Eigen::Index N, Eigen::Index d_v = 3, double spread = 1) : OneQuery(N, 6, d_v, 0, kSeed) {
    q *= spread / q.norm();
  }
  /// A point of the relative interior of the hull.
  Vector inside() { return V.transpose() * softmax(matrix(V.rows(), 1)); }
  Vector scores() const { return K * q; }
  double F(const Vector& source = Vector()) const { return energy(q, K, V, source); }
  LegendrePoint at(const Vector& z) const { return legendre_transform(q, K, V, z); }
};

/// The corners of a square with side 2 around 0, and a key at its centre; scores 0.3, -1, 0.7, 2 and 0.1.
Workload square() {
  Workload p(5, 2);
  p.q = Vector::Ones(1);
  p.K = (Matrix(5, 1) << 0.3, -1, 0.7, 2, 0.1).finished();
  p.V = (Matrix(5, 2) << -1, -1, 1, -1, 1, 1, -1, 1, 0, 0).finished();
  return p;
}

TEST_CASE("legendre: the supremum is attained where the mean of the values is z (relative interior)") {
  int most_steps = 0;
  for (const Eigen::Index N : {2, 5, 40, 300}) {
    for (const Eigen::Index d_v : {1, 3, 24}) {
      for (const double spread : {0.0, 1.0, 10.0, 50.0}) {
        CAPTURE(N);
        CAPTURE(d_v);
        CAPTURE(spread);
        Workload p(N, d_v, spread);
        const Vector z = p.inside();
        const LegendrePoint point = p.at(z);
        CHECK((energy_gradient(p.q, p.K, p.V, point.zeta) - z).norm() < 1e-9);
        CHECK((p.V.transpose() * point.P - z).norm() < 1e-9);
        CHECK(point.P.sum() == doctest::Approx(1).epsilon(1e-13));
        CHECK(point.value == doctest::Approx(z.dot(point.zeta) - p.F(point.zeta)).epsilon(1e-9));
        CHECK(point.value >= -p.F() - 1e-12);
        most_steps = std::max(most_steps, point.n_steps);
      }
    }
  }
  MESSAGE("Newton steps: at most ", most_steps);
  CHECK(most_steps < 60);
}

TEST_CASE("legendre: the gradient of F* is the source, and its Hessian is the curvature (central differences)") {
  Workload p(20, 4);
  for (int repeat = 0; repeat < 3; ++repeat) {
    const Vector z = p.inside();
    const LegendrePoint point = p.at(z);
    for (Eigen::Index j = 0; j < 4; ++j) {
      const Vector step = 1e-5 * Vector::Unit(4, j);
      const LegendrePoint up = p.at(z + step), down = p.at(z - step);
      CHECK((up.value - down.value) / 2e-5 == doctest::Approx(point.zeta(j)).epsilon(1e-6));
      CHECK(((up.zeta - down.zeta) / 2e-5 - point.curvature.col(j)).norm() < 1e-6 * point.curvature.norm());
    }
    CHECK((point.curvature * covariance(p.q, p.K, p.V, point.zeta) - Matrix::Identity(4, 4)).norm() < 1e-8);
  }
}

TEST_CASE("legendre: outside the convex hull F* is +inf, an error with a lower bound of the distance") {
  const Workload p = square();
  // The distance in the message is that of a separating plane, which is at most the distance from the hull.
  for (const double off : {1e-6, 1e-3, 1.0, 1e3}) {
    const std::string what = test::message<std::domain_error>([&] { p.at(Eigen::Vector2d(0.2, 1 + off)); });
    CHECK(what.starts_with("legendre_transform: z = (0.2, "));
    const double distance = std::stod(what.substr(what.find("at least ") + 9));
    CHECK(distance > 0);
    CHECK(distance < off * (1 + 1e-5));
  }
  // A supporting plane of random values, from far inside to far outside of it.
  for (const Eigen::Index d_v : {1, 2, 8, 24}) {
    for (const double spread : {1.0, 30.0}) {
      Workload cloud(60, d_v, spread);
      const Vector normal = cloud.matrix(d_v, 1).normalized();
      Eigen::Index corner = 0;
      const Vector height = cloud.V * normal;
      height.maxCoeff(&corner);
      const Vector tip = cloud.V.row(corner).transpose();
      for (const double off : {1e-6, 1e-3, 1.0, 100.0}) CHECK_THROWS_AS(cloud.at(tip + off * normal), std::domain_error);
      for (const double in : {1e-6, 1e-3, 0.5}) {
        const Vector z = (1 - in) * tip + in * cloud.V.colwise().mean().transpose();
        CHECK((energy_gradient(cloud.q, cloud.K, cloud.V, cloud.at(z).zeta) - z).norm() < 1e-8);
      }
    }
  }
}

TEST_CASE("legendre: on the boundary F* is finite, and its supremum is not attained") {
  const Workload p = square();
  const Vector s = p.scores();

  // At a corner only one key has weight and F* = -s_c. Every finite zeta gives less.
  for (const Eigen::Index corner : {0, 1, 2, 3}) {
    const LegendrePoint point = p.at(p.V.row(corner).transpose());
    CHECK(point.value == doctest::Approx(-s(corner)).epsilon(1e-9));
    CHECK(point.P(corner) > 1 - 1e-7);
    CHECK(point.zeta.norm() > 5);
  }
  // On an edge only its two keys have weight.
  for (const double x : {0.25, 0.5, 0.9}) {
    const LegendrePoint point = p.at(Eigen::Vector2d(2 * x - 1, -1));
    CHECK(point.value == doctest::Approx((1 - x) * (std::log(1 - x) - s(0)) + x * (std::log(x) - s(1))).epsilon(1e-9));
    CHECK(point.P(0) + point.P(1) > 1 - 1e-7);
  }
  // Corners of a random cloud.
  for (const Eigen::Index d_v : {1, 2, 8}) {
    Workload cloud(40, d_v, 3);
    for (int repeat = 0; repeat < 10; ++repeat) {
      Eigen::Index corner = 0;
      const Vector height = cloud.V * cloud.matrix(d_v, 1);
      height.maxCoeff(&corner);
      CHECK(cloud.at(cloud.V.row(corner).transpose()).value == doctest::Approx(-cloud.scores()(corner)).epsilon(1e-8));
    }
  }
}

TEST_CASE("legendre: the transform works within the affine hull of the values, and z off the hull is an error") {
  // Four keys in six dimensions span three.
  Workload p(4, 6);
  const Vector z = p.inside();
  const LegendrePoint point = p.at(z);
  CHECK((energy_gradient(p.q, p.K, p.V, point.zeta) - z).norm() < 1e-9);
  CHECK(point.divergence == doctest::Approx(point.value + p.F()).epsilon(1e-12));
  const AffineHull hull = affine_hull(p.V);
  CHECK(hull.axes.cols() == 3);
  CHECK((hull.dual.transpose() * hull.axes - Matrix::Identity(3, 3)).norm() < 1e-13);
  CHECK((point.zeta - hull.axes * (hull.axes.transpose() * hull.axes).ldlt().solve(hull.axes.transpose() * point.zeta))
            .norm() < 1e-10);

  // If the values are the corners of a simplex, each z has exactly one P, its barycentric weights, whatever the scores are.
  const Vector P = (Vector(4) << 0.1, 0.2, 0.3, 0.4).finished();
  CHECK((p.at(p.V.transpose() * P).P - P).norm() < 1e-10);

  // A step off the affine hull is an error. The same step within it is not.
  const Vector w = p.matrix(6, 1);
  const Vector in_plane = hull.axes * (hull.dual.transpose() * w);
  CHECK_THROWS_WITH_AS(p.at(z + 1e-6 * (w - in_plane)), doctest::Contains("off the plane that they span"),
                       std::domain_error);
  CHECK_NOTHROW(p.at(z + 1e-6 * in_plane));

  // The same cloud, lifted from 3 to 9 dimensions, far from the origin: the same F*.
  Workload flat(30, 3);
  const Matrix lift = flat.matrix(9, 3);
  const Vector far = 100 * flat.matrix(9, 1), y = flat.inside();
  const Matrix lifted = (flat.V * lift.transpose()).rowwise() + far.transpose();
  const LegendrePoint low = flat.at(y), high = legendre_transform(flat.q, flat.K, lifted, lift * y + far);
  CHECK(high.value == doctest::Approx(low.value).epsilon(1e-10));
  CHECK((high.P - low.P).norm() < 1e-9);
  CHECK((lift.transpose() * high.zeta - low.zeta).norm() < 1e-8);
}

TEST_CASE("legendre: one key, equal values, a repeated value") {
  const Workload one(1, 3);
  const LegendrePoint point = one.at(one.V.row(0).transpose());
  CHECK(point.value == doctest::Approx(-one.scores()(0)).epsilon(1e-14));
  CHECK(point.zeta.norm() == 0);
  CHECK(point.P(0) == 1);
  CHECK(point.curvature.norm() == 0);
  CHECK_THROWS_AS(one.at(one.V.row(0).transpose() + Vector::Constant(3, 1e-6)), std::domain_error);

  Workload equal(7, 3);
  equal.V = equal.V.row(0).replicate(7, 1).eval();
  CHECK(equal.at(equal.V.row(0).transpose()).value == doctest::Approx(-equal.F()).epsilon(1e-14));
  CHECK_THROWS_AS(equal.at(Vector::Zero(3)), std::domain_error);

  // The corner of a square, shared by two keys.
  Workload p = square();
  p.V.row(4) = p.V.row(2);
  CHECK(p.at(p.V.row(2).transpose()).value == doctest::Approx(-log_sum_exp(Eigen::Vector2d(0.7, 0.1))).epsilon(1e-8));
}

TEST_CASE("legendre: masked keys, values and scores that are not finite, shapes") {
  Workload p(10, 3);
  const Vector z = p.inside();

  // A key with score -inf is masked, whatever its value is.
  Workload more = p;
  more.K = Matrix(11, 6);
  more.K << p.K.topRows(4), -kInf * p.q.cwiseSign().transpose(), p.K.bottomRows(6);
  more.V = Matrix(11, 3);
  more.V << p.V.topRows(4), Matrix::Constant(1, 3, kNaN), p.V.bottomRows(6);
  const LegendrePoint point = more.at(z);
  CHECK(point.value == p.at(z).value);
  CHECK(point.P(4) == 0);
  CHECK((point.P.tail(6) - p.at(z).P.tail(6)).norm() < 1e-14);

  CHECK_THROWS_AS(legendre_transform(p.q, p.K.topRows(0), p.V.topRows(0), z), std::domain_error);
  for (const double bad : {kNaN, kInf}) {
    Workload q = p;
    q.V(3, 1) = bad;
    CHECK_THROWS_WITH_AS(q.at(z), doctest::Contains("is not finite"), std::domain_error);
    q = p;
    q.K.row(3) = bad * q.q.cwiseSign().transpose();
    CHECK_THROWS_WITH_AS(q.at(z), doctest::Contains("is not finite"), std::domain_error);
    CHECK_THROWS_WITH_AS(p.at(Vector::Constant(3, bad)), doctest::Contains("is not finite"), std::domain_error);
  }
  CHECK_INVALID(p.at(z.head(2)), "legendre_transform: z has length 2, a value 3");
  CHECK_THROWS_AS(legendre_transform(p.q, p.K, p.V.leftCols(0), Vector()), std::invalid_argument);
}

TEST_CASE("kl divergence: 0 for the softmax itself, positive otherwise, +inf on a masked key") {
  const Vector s = (Vector(4) << 1e4, 1e4 - 2, -kInf, 0).finished();
  const Vector P = softmax(s);
  CHECK(kl_divergence(P, s) == doctest::Approx(0).epsilon(1e-11));  // scores of 1e4, rounded
  CHECK(kl_divergence(Eigen::Vector4d(0.5, 0.5, 0, 0), s) > 0);
  CHECK(kl_divergence(Eigen::Vector4d(0, 0, 0, 1), s) ==
        doctest::Approx(1e4 + std::log1p(std::exp(-2))).epsilon(1e-14));  // softmax itself is 0 there
  CHECK(kl_divergence(Eigen::Vector4d(0.9, 0, 0.1, 0), s) == kInf);
  CHECK(kl_divergence(Eigen::Vector2d(0.5, 0.5), Eigen::Vector2d(-kInf, -kInf)) == kInf);  // no key is seen
  CHECK_THROWS_AS(kl_divergence(P.head(3), s), std::invalid_argument);
}

}  // namespace legendre_test
