// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The state with the paper's max and exp, compared with the state with an integer shift.
#include "tree_attn/reference/energy/energy.hpp"
#include "tree_attn/reference/oracle/natural_state.hpp"
#include "tree_attn/tests/reference/energy/one_query.hpp"

#include <doctest/doctest.h>

#include <random>
#include <vector>

namespace natural_state_test {

using namespace tree_attn;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr Eigen::Index kValueDim = 4;
constexpr unsigned kSeed = 3;

struct Keys {
  Vector s;  ///< natural scores [N]
  Matrix V;  ///< [N, d_v]
};

Keys random_keys(Eigen::Index N, double sigma) {
  std::mt19937 random(kSeed);
  return {sigma * test::random_matrix(random, N, 1), test::random_matrix(random, N, kValueDim)};
}

NaturalState natural_chain(const Keys& keys) {
  NaturalState state = natural_empty(kValueDim);
  for (Eigen::Index a = 0; a < keys.s.size(); ++a) state = merge(state, natural_key(keys.s(a), keys.V.row(a).transpose()));
  return state;
}

std::vector<double> integer_chain(const Keys& keys) {
  std::vector<double> state(static_cast<std::size_t>(state_size(kValueDim))), key = state;
  set_empty(state.data(), kValueDim);
  for (Eigen::Index a = 0; a < keys.s.size(); ++a) {
    const Vector v = keys.V.row(a).transpose();
    set_key(key.data(), kLog2E * keys.s(a), v.data(), kValueDim);
    merge(state.data(), key.data(), kValueDim);
  }
  return state;
}

bool same(const NaturalResult& a, const NaturalResult& b) {
  return (a.lse == b.lse || (std::isnan(a.lse) && std::isnan(b.lse))) &&
         ((a.z.array() == b.z.array()) || (a.z.array().isNaN() && b.z.array().isNaN())).all();
}

/// @tested{eq_shift, eq. (shift)}
/// @tested{alg_3, Alg. 3}
TEST_CASE("natural state: the integer shift represents the same sums") {
  for (const Eigen::Index N : {0, 1, 2, 100}) {
    for (const double sigma : {1.0, 30.0}) {
      const Keys keys = random_keys(N, sigma);
      const std::vector<double> state = integer_chain(keys);
      const NaturalState natural = natural_chain(keys), converted = to_natural(state.data(), kValueDim);

      // Both give the same results, from the state and from its conversion.
      std::vector<double> z(kValueDim);
      const double lse = finish(state.data(), z.data(), kValueDim);
      const NaturalResult want = finish(natural), got = finish(converted);
      CHECK((lse == want.lse || std::abs(lse - want.lse) < 1e-12 * (1 + sigma)));
      CHECK((got.lse == want.lse || std::abs(got.lse - want.lse) < 1e-12 * (1 + sigma)));
      CHECK((got.z - want.z).norm() < 1e-12 * (1 + sigma));
      CHECK((Eigen::Map<Vector>(z.data(), kValueDim) - want.z).norm() < 1e-12 * (1 + sigma));

      // The shift is the base-two max rounded up, so D is smaller than the paper's by less than a factor of two.
      if (N == 0) continue;
      CHECK(state[kShift] == std::ceil(kLog2E * natural.m));
      CHECK(natural.D / converted.D == doctest::Approx(std::exp(converted.m - natural.m)).epsilon(1e-9));
      CHECK((converted.D <= natural.D * (1 + 1e-12) && converted.D >= natural.D / 2 * (1 - 1e-12)));
    }
  }
}

TEST_CASE("natural state: the empty set is neutral, NaN and Inf are kept") {
  const Vector v = Vector::Ones(kValueDim);
  const NaturalState empty = natural_empty(kValueDim), key = natural_key(2, v);
  CHECK(same(finish(merge(empty, empty)), finish(empty)));
  CHECK(same(finish(merge(key, empty)), finish(key)));
  CHECK(same(finish(merge(empty, key)), finish(key)));
  CHECK(finish(empty).lse == -kInf);
  CHECK(finish(empty).z == Vector::Zero(kValueDim));
  const NaturalState unseen = natural_key(-kInf, Vector::Constant(kValueDim, kNaN));
  CHECK(same(finish(unseen), finish(empty)));
  CHECK(same(finish(merge(unseen, key)), finish(key)));
  for (const double bad : {kInf, kNaN}) {
    for (const NaturalState& state : {natural_key(bad, v), merge(natural_key(bad, v), key), merge(key, natural_key(bad, v)),
                                      merge(empty, natural_key(bad, v))}) {
      CHECK(std::isnan(finish(state).lse));
      CHECK(finish(state).z.array().isNaN().all());
    }
  }
}

}  // namespace natural_state_test
