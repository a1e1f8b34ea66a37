// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The gradient of the energy by ADOL-C, an independent reverse mode applied to the same code.
#include "tree_attn/reference/energy/energy.hpp"
#include "tree_attn/tests/reference/energy/one_query.hpp"

#include <Eigen/Core>
#include <adolc/adolc.h>
#include <doctest/doctest.h>

#include <cstddef>
#include <random>
#include <vector>

namespace Eigen {

/// Tells Eigen that an adouble may be used wherever a double is.
template <>
struct NumTraits<adouble> : NumTraits<double> {
  using Real = adouble;
  using NonInteger = adouble;
  using Nested = adouble;
  enum { RequireInitialization = 1 };
};

}  // namespace Eigen

namespace {

using namespace tree_attn;
using Eigen::Index;
using test::random_matrix;

constexpr unsigned kSeed = 6;
constexpr short kTape = 1;

/// Records the energy of causal queries on a tape and returns its value.
double tape_energy(const Head& head) {
  trace_on(kTape);
  MatrixOf<adouble> Zeta(head.Zeta.rows(), head.Zeta.cols());
  for (Index j = 0; j < Zeta.size(); ++j) Zeta(j) <<= head.Zeta(j);
  adouble F = causal_energy<adouble>(head.Q.cast<adouble>(), head.K.cast<adouble>(), head.V.cast<adouble>(), Zeta);
  double value = 0;
  F >>= value;
  trace_off();
  return value;
}

}  // namespace

/// @tested{obs_1, Obs. 1}
/// @tested{eq_5, eq. (5)}
/// @tested{eq_26, eq. (26)}
TEST_CASE("gradient: ADOL-C's reverse mode applied to the energy gives attention, for causal heads, at any zeta") {
  CAPTURE(kSeed);
  std::mt19937 random(kSeed);
  for (const double size : {0.0, 0.5, 3.0}) {
    for (int h = 0; h < 3; ++h) {
      const Head head{random_matrix(random, 3, 7) / 2, random_matrix(random, 11, 7), random_matrix(random, 11, 5),
                      size * random_matrix(random, 3, 5)};
      CHECK(tape_energy(head) == doctest::Approx(causal_energy(head.Q, head.K, head.V, head.Zeta)).epsilon(1e-14));
      Matrix slope(3, 5);
      gradient(kTape, 15, head.Zeta.data(), slope.data());
      CHECK((slope - causal_energy_gradient(head.Q, head.K, head.V, head.Zeta)).cwiseAbs().maxCoeff<Eigen::PropagateNaN>() <
            1e-14);
    }
  }
}

/// @tested{eq_cov, eq. (cov)}
TEST_CASE("gradient: ADOL-C's Hessian of the energy is the covariance of the values") {
  CAPTURE(kSeed);
  std::mt19937 random(kSeed);
  const Head head{random_matrix(random, 1, 7) / 2, random_matrix(random, 11, 7), random_matrix(random, 11, 4),
                  random_matrix(random, 1, 4)};
  tape_energy(head);
  Matrix H(4, 4);
  std::vector<double*> rows;
  for (Index j = 0; j < 4; ++j) rows.push_back(H.col(j).data());
  hessian(kTape, 4, const_cast<double*>(head.Zeta.data()), rows.data());
  const Vector P = softmax(exponents(head.Q.row(0).transpose(), head.K, head.V, head.Zeta.row(0).transpose()));
  const Vector mean = head.V.transpose() * P;
  const Matrix want = head.V.transpose() * P.asDiagonal() * head.V - mean * mean.transpose();
  // ADOL-C fills the lower triangle: row i up to column i.
  for (Index i = 0; i < 4; ++i) {
    for (Index j = 0; j <= i; ++j) CHECK(std::abs(H(j, i) - want(i, j)) < 1e-13);
  }
}
