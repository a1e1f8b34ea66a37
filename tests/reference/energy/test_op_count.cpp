// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The cost of the gradient in operations, relative to the energy: a small constant in reverse mode, d_v in forward
/// mode.
#include "tree_attn/reference/energy/energy.hpp"
#include "tree_attn/reference/energy/op_count.hpp"
#include "tree_attn/reference/energy/reverse_mode.hpp"

#include <Eigen/Core>
#include <doctest/doctest.h>
#include <unsupported/Eigen/AutoDiff>

#include <cmath>
#include <random>

namespace op_count_test {

using namespace tree_attn;
using Eigen::Index;

constexpr unsigned kSeed = 5;

/// Operations of the energy of one query, and of its gradient by three methods.
struct GradientCost {
  OperationCount energy, by_hand, reverse, forward;

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
  double ratio(const OperationCount& gradient) const {
    return static_cast<double>(gradient.total()) / static_cast<double>(energy.total());
  }
};

TEST_CASE("counted: values are those of double, and each operation counts once") {
  Counted result;
  const OperationCount count = count_operations([&result] {
    Counted x = 2, y = 3;
    result = exp(x * y) / (x + y) - log(y);
    result += -x;
    result *= y;
  });
  CHECK(result.value() == (std::exp(6.0) / 5 - std::log(3.0) - 2) * 3);
  CHECK(count.n_add == 3);
  CHECK(count.n_mul == 2);
  CHECK(count.n_div == 1);
  CHECK(count.n_exp == 1);
  CHECK(count.n_log == 1);
  CHECK(count.total() == 8);
}

/// @tested{alg_2, Alg. 2}
TEST_CASE("gradient: in reverse mode it costs a small constant times the energy, in forward mode d_v times") {
  CAPTURE(kSeed);
  double last = 0;
  for (const Index d_v : {1, 2, 4, 8, 16, 32, 64, 128, 256}) {
    const GradientCost cost(32, 16, d_v);
    INFO("d_v ", d_v, ": energy ", cost.energy.total(), " operations; gradient by hand ", cost.ratio(cost.by_hand),
         ", reverse ", cost.ratio(cost.reverse), ", forward ", cost.ratio(cost.forward), " times as many");
    CHECK(cost.energy.n_exp == 32);
    CHECK(cost.energy.n_log == 1);
    // A step of the energy, which has no division, and its part of the sweep take at most five operations: the step itself,
    // two multiplications, two additions.
    CHECK(cost.ratio(cost.reverse) > 1);
    CHECK(cost.ratio(cost.reverse) < 5);
    // In closed form: the weights are known, and each value is read once more.
    CHECK(cost.ratio(cost.by_hand) > 1);
    CHECK(cost.ratio(cost.by_hand) < 2);
    CHECK(cost.by_hand.n_exp == 32);
    CHECK(cost.reverse.n_exp == 32);
    // Forward mode: at least one operation per derivative.
    CHECK(cost.ratio(cost.forward) > static_cast<double>(d_v));
    CHECK(cost.ratio(cost.forward) > last);
    last = cost.ratio(cost.forward);
  }
}

}  // namespace op_count_test
