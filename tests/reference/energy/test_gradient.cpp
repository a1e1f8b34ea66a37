// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The gradient of the energy by several methods: closed form, forward and reverse mode applied to the code of the
/// energy, and differences; and its cost in operations, relative to the energy. Alg. 2 is in test_algorithms.cpp.
#include "reference/energy/energy.hpp"
#include "reference/energy/op_count.hpp"
#include "reference/energy/reverse_mode.hpp"
#include "tests/reference/energy/one_query.hpp"

#include <Eigen/Core>
#include <doctest/doctest.h>
#include <unsupported/Eigen/AutoDiff>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace gradient_test {

using namespace tree_attn;
using Eigen::Index;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr unsigned kSeed = 5;
constexpr Index kQueryDim = 7, kValueDim = 5;

/// Causal queries of several heads. Heads read the same keys and values in pairs.
struct Workload {
  std::vector<Head> heads;

  explicit Workload(double size_of_zeta, Index N = 11, Index l = 3) {
    std::mt19937 random(kSeed);
    const auto matrix = [&](Index rows, Index cols) { return test::random_matrix(random, rows, cols); };
    for (int group = 0; group < 2; ++group) {
      const Matrix K = matrix(N, kQueryDim), V = matrix(N, kValueDim);
      for (int h = 0; h < 2; ++h) heads.push_back({matrix(l, kQueryDim) / 2, K, V, size_of_zeta * matrix(l, kValueDim)});
    }
  }
};

/// Forward mode: every scalar carries its derivatives with respect to all of zeta.
Matrix forward_gradient(const Head& head) {
  using Slopes = Eigen::VectorXd;
  using Forward = Eigen::AutoDiffScalar<Slopes>;
  const Index n = head.Zeta.size();
  const auto constant = [n](double x) { return Forward(x, Slopes::Zero(n)); };
  MatrixOf<Forward> Zeta(head.Zeta.rows(), head.Zeta.cols());
  for (Index j = 0; j < n; ++j) Zeta(j) = Forward(head.Zeta(j), n, j);
  const MatrixOf<Forward> Q = head.Q.unaryExpr(constant), K = head.K.unaryExpr(constant), V = head.V.unaryExpr(constant);
  const Forward F = causal_energy<Forward>(Q, K, V, Zeta);
  return F.derivatives().reshaped(head.Zeta.rows(), head.Zeta.cols());
}

/// Reverse mode: one backward sweep along the tape.
Matrix reverse_gradient(const Head& head) {
  using Taped = Reverse<double>;
  const VectorOf<Taped> zeta = Taped::variables(head.Zeta.reshaped());
  const MatrixOf<Taped> Zeta = zeta.reshaped(head.Zeta.rows(), head.Zeta.cols());
  const Taped F = causal_energy<Taped>(head.Q.cast<Taped>(), head.K.cast<Taped>(), head.V.cast<Taped>(), Zeta);
  return Taped::gradient(F, zeta.size()).reshaped(head.Zeta.rows(), head.Zeta.cols());
}

/// Central differences of the energy of all heads.
Matrix difference_gradient(std::vector<Head> heads, std::size_t h) {
  const Matrix Zeta = heads[h].Zeta;
  return test::slopes([&](const Matrix& at) { return heads[h].Zeta = at, multi_head_energy(heads); }, Zeta);
}

/// @tested{obs_1, Obs. 1}
/// @tested{eq_5, eq. (5)}
/// @tested{eq_15, eq. (15)}
/// @tested{eq_25, eq. (25)}
/// @tested{eq_26, eq. (26)}
/// @tested{eq_27, eq. (27)}
/// @tested{eq_28, eq. (28)}
TEST_CASE("gradient: closed form, forward mode, reverse mode and differences agree, for causal heads, at any zeta") {
  for (const double size : {0.0, 0.5, 3.0}) {
    const Workload p(size);
    double sum = 0;
    for (std::size_t h = 0; h < p.heads.size(); ++h) {
      const Head& head = p.heads[h];
      const Matrix closed = causal_energy_gradient(head.Q, head.K, head.V, head.Zeta);
      const auto error = [&closed](const Matrix& other) { return (other - closed).cwiseAbs().maxCoeff(); };
      CHECK(error(forward_gradient(head)) < 1e-14);
      CHECK(error(reverse_gradient(head)) < 1e-14);
      CHECK(error(difference_gradient(p.heads, h)) < 1e-8);
      sum += causal_energy(head.Q, head.K, head.V, head.Zeta);
    }
    CHECK(multi_head_energy(p.heads) == doctest::Approx(sum).epsilon(1e-14));
  }
}

TEST_CASE("gradient: with all keys masked it is 0, in closed form and in reverse mode") {
  Workload p(1.0);
  Head& head = p.heads[0];
  head.Q.setOnes();
  head.K.setConstant(-kInf);
  CHECK(causal_energy(head.Q, head.K, head.V, head.Zeta) == -kInf);
  CHECK(causal_energy_gradient(head.Q, head.K, head.V, head.Zeta).norm() == 0);
  CHECK(reverse_gradient(head).norm() == 0);
  // Forward mode carries the derivative 0 of constants and multiplies it by the key: 0 times -inf.
  CHECK(std::isnan(forward_gradient(head).norm()));
}

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

/// Operations of the energy of one query, and of its gradient by three methods.
struct GradientCost {
  std::int64_t energy, by_hand, reverse, forward;

  GradientCost(Index N, Index d_h, Index d_v) {
    std::mt19937 random(kSeed);
    std::normal_distribution<double> normal;
    const auto matrix = [&](Index rows, Index cols) -> MatrixOf<Counted> {
      return MatrixOf<Counted>::NullaryExpr(rows, cols, [&] { return Counted(normal(random)); });
    };
    const MatrixOf<Counted> K = matrix(N, d_h), V = matrix(N, d_v);
    const VectorOf<Counted> q = matrix(d_h, 1), zeta = matrix(d_v, 1);
    energy = count_operations([&] { tree_attn::energy<Counted>(q, K, V, zeta); });
    by_hand = count_operations([&] { energy_gradient<Counted>(q, K, V, zeta); });

    using Taped = Reverse<Counted>;
    reverse = count_operations([&] {
      const VectorOf<Taped> taped = Taped::variables(zeta);
      Taped::gradient(tree_attn::energy<Taped>(q.cast<Taped>(), K.cast<Taped>(), V.cast<Taped>(), taped), d_v);
    });

    using Forward = Eigen::AutoDiffScalar<VectorOf<Counted>>;
    const auto constant = [d_v](Counted x) { return Forward(x, VectorOf<Counted>::Zero(d_v)); };
    forward = count_operations([&] {
      VectorOf<Forward> seeded(d_v);
      for (Index j = 0; j < d_v; ++j) seeded(j) = Forward(zeta(j), d_v, j);
      tree_attn::energy<Forward>(q.unaryExpr(constant), K.unaryExpr(constant), V.unaryExpr(constant), seeded);
    });
  }
  double ratio(std::int64_t gradient) const { return static_cast<double>(gradient) / static_cast<double>(energy); }
};

TEST_CASE("counted: values are those of double, and each operation counts once") {
  Counted result;
  const std::int64_t count = count_operations([&result] {
    Counted x = 2, y = 3;
    result = exp(x * y) / (x + y) - log(y);
    result += -x;
    result *= y;
  });
  CHECK(result.value() == (std::exp(6.0) / 5 - std::log(3.0) - 2) * 3);
  CHECK(count == 3 + 2 + 1 + 1 + 1);  // additions, products, a division, exp and log
}

/// @tested{alg_2, Alg. 2}
TEST_CASE("gradient: in reverse mode it costs a small constant times the energy, in forward mode d_v times") {
  double last = 0;
  for (const Index d_v : {1, 2, 4, 8, 16, 32, 64, 128, 256}) {
    const GradientCost cost(32, 16, d_v);
    INFO("d_v ", d_v, ": energy ", cost.energy, " operations; gradient by hand ", cost.ratio(cost.by_hand), ", reverse ",
         cost.ratio(cost.reverse), ", forward ", cost.ratio(cost.forward), " times as many");
    // A step of the energy, which has no division, and its part of the sweep take at most five operations: the step itself,
    // two multiplications, two additions.
    CHECK(cost.ratio(cost.reverse) > 1);
    CHECK(cost.ratio(cost.reverse) < 5);
    // In closed form: the weights are known, and each value is read once more.
    CHECK(cost.ratio(cost.by_hand) > 1);
    CHECK(cost.ratio(cost.by_hand) < 2);
    // Forward mode: at least one operation per derivative.
    CHECK(cost.ratio(cost.forward) > static_cast<double>(d_v));
    CHECK(cost.ratio(cost.forward) > last);
    last = cost.ratio(cost.forward);
  }
}

}  // namespace gradient_test
