// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Attention as a stream of keys, and the limits of the plain form.
#include "reference/energy/energy.hpp"
#include "reference/energy/stream.hpp"
#include "tests/reference/energy/one_query.hpp"

#include <doctest/doctest.h>

#include <random>

namespace stream_test {

using namespace tree_attn;
using test::random_matrix;

constexpr unsigned kSeed = 1;

/// @tested{eq_1, eq. (1)}
/// @tested{eq_2, eq. (2)}
/// @tested{eq_3, eq. (3)}
/// @tested{eq_quotient, eq. (quotient)}
TEST_CASE("stream: after every key it gives the attention over the keys so far") {
  std::mt19937 random(kSeed);
  const Matrix K = random_matrix(random, 30, 8), V = random_matrix(random, 30, 5);
  const Vector q = random_matrix(random, 8, 1) / std::sqrt(8.0);
  AttentionStream stream(5);
  for (Eigen::Index i = 0; i < 30; ++i) {
    const double D_before = stream.D();
    const Vector n_before = stream.n();
    stream.add(q, K.row(i).transpose(), V.row(i).transpose());
    const double s = std::exp(K.row(i).dot(q));
    CHECK(stream.D() == doctest::Approx(D_before + s).epsilon(1e-14));
    CHECK((stream.n() - n_before - s * V.row(i).transpose()).norm() < 1e-12);
    CHECK((stream.z() - attention_mean(q, K.topRows(i + 1), V.topRows(i + 1))).norm() < 1e-12);
  }
  CHECK(std::log(stream.D()) == doctest::Approx(energy(q, K, V, Vector())).epsilon(1e-14));
}

TEST_CASE("stream: the plain form fails at logits at which the safe form is accurate") {
  const Vector one = Vector::Ones(1);
  for (const double logit : {1e4, -1e4}) {
    AttentionStream stream(1);
    stream.add(one, logit * one, one);
    CHECK(std::isnan(stream.z()(0)));
    CHECK(attention_mean(one, logit * one, one)(0) == 1);
  }
  CHECK(std::isnan(AttentionStream(1).z()(0)));
}

}  // namespace stream_test
