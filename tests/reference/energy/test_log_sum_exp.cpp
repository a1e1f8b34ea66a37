// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief log-sum-exp and softmax in the safe form.
#include "reference/energy/log_sum_exp.hpp"
#include "tests/reference/energy/one_query.hpp"

#include <doctest/doctest.h>

#include <random>

namespace log_sum_exp_test {

using namespace tree_attn;
using Eigen::Vector3d;
using Eigen::VectorXd;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr unsigned kSeed = 4;

VectorXd random_vector(Eigen::Index size, double sigma) {
  std::mt19937 random(kSeed);
  return sigma * test::random_matrix(random, size, 1);
}

/// @tested{eq_4, eq. (4)}
TEST_CASE("log_sum_exp: its gradient is the softmax (central differences)") {
  for (const double sigma : {0.1, 1.0, 5.0}) {
    const VectorXd z = random_vector(17, sigma);
    const VectorXd P = softmax(z);
    CHECK(P.sum() == doctest::Approx(1).epsilon(1e-14));
    const Eigen::MatrixXd slope = test::slopes([](const auto& at) { return log_sum_exp(at.col(0)); }, z);
    CHECK((slope - P).cwiseAbs().maxCoeff<Eigen::PropagateNaN>() < 1e-9);
  }
}

/// @tested{eq_36, eq. (36)}
/// @tested{eq_shift, eq. (shift)}
/// @tested{eq_37, eq. (37)}
/// @tested{eq_38, eq. (38)}
TEST_CASE("log_sum_exp: a shift adds a constant and leaves the softmax unchanged") {
  const VectorXd z = random_vector(40, 3);
  for (const double m : {z.maxCoeff(), -7.5, 1e4, -1e4, 1e6, -1e6}) {
    const VectorXd shifted = z.array() - m;
    CHECK(log_sum_exp(shifted) + m == doctest::Approx(log_sum_exp(z)).epsilon(1e-9));
    CHECK((softmax(shifted) - softmax(z)).cwiseAbs().maxCoeff<Eigen::PropagateNaN>() < 1e-9);
  }
}

TEST_CASE("log_sum_exp: huge logits neither overflow nor lose the gradient") {
  for (const double top : {1e300, -1e300, 1.7e308, -1.7e308}) {
    CHECK(log_sum_exp(Vector3d(top, top, top)) == top);
    CHECK(softmax(Vector3d(top, top, top))(1) == doctest::Approx(1.0 / 3).epsilon(1e-15));
  }
  CHECK(softmax(Vector3d(1.7e308, -1.7e308, 0)) == Vector3d(1, 0, 0));
  CHECK(log_sum_exp(Vector3d(1.7e308, -1.7e308, 0)) == 1.7e308);
}

TEST_CASE("log_sum_exp: an entry of -inf has no effect") {
  CHECK(log_sum_exp(Vector3d(1, -kInf, 2)) == log_sum_exp(Eigen::Vector2d(1, 2)));
  CHECK(softmax(Vector3d(1, -kInf, 2))(1) == 0);
  CHECK(log_sum_exp(VectorXd()) == -kInf);
  CHECK(softmax(VectorXd()).size() == 0);
  CHECK(log_sum_exp(Vector3d::Constant(-kInf)) == -kInf);
  CHECK(softmax(Vector3d::Constant(-kInf)) == Vector3d(0, 0, 0));
}

TEST_CASE("log_sum_exp: +inf and NaN give NaN, at any index") {
  for (const double bad : {kInf, kNaN, -kNaN}) {
    for (int index = 0; index < 21; ++index) {
      VectorXd z = random_vector(21, 1);
      z(index) = bad;
      CHECK(std::isnan(log_sum_exp(z)));
      CHECK(std::isnan(softmax(z).sum()));
      CHECK(std::isnan(log_sum_exp(Vector3d(bad, -kInf, -kInf))));
      if (std::isnan(bad)) CHECK(std::isnan(max_keeping_nan(z)));
    }
  }
}

TEST_CASE("safe_weight: a weight of 0 is exactly 0") {
  CHECK(safe_weight(-1000, 0) == 0);
  CHECK(safe_weight(-kInf, 0) == 0);
  CHECK(safe_weight(-kInf, -kInf) == 0);
  CHECK(safe_weight(3, 3) == 1);
  CHECK(std::isnan(safe_weight(kInf, kInf)));
  CHECK(std::isnan(safe_weight(0, kNaN)));
  CHECK(std::isnan(safe_weight(-kInf, kNaN)));
}

}  // namespace log_sum_exp_test
