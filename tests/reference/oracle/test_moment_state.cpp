// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Covariance and entropy from the tree reduction: compared with moments.hpp, equal in bits for all cuts, and over
/// tensors.
#include "reference/decode/decode.hpp"
#include "reference/energy/moments.hpp"
#include "reference/oracle/moment_state.hpp"
#include "reference/state/forest.hpp"
#include "tests/reference/energy/one_query.hpp"
#include "tests/support/message.hpp"
#include "tests/support/same_bits.hpp"
#include "tests/support/tensors.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace moment_state_test {

using namespace tree_attn;
using namespace tree_attn::test;

constexpr unsigned kSeed = 24;
constexpr std::int64_t kQueryDim = 6, kValueDim = 4;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// One query over N random keys; the values have a nonzero mean.
struct Workload : OneQuery {
  explicit Workload(Eigen::Index N) : OneQuery(N, kQueryDim, kValueDim, 0, kSeed) { V.array() += 1; }
  /// The entropy read from a state; the score is q.k.
  template <class Real>
  double entropy_in(const MomentLayout& layout, const std::vector<Real>& state) const {
    return read_entropy(layout, state.data(), std::span(q.data(), kQueryDim));
  }
};

/// The forest of the keys [begin, end), with enlarged values.
template <class Real>
Forest<Real> forest_of(const Workload& p, const MomentLayout& layout, std::int64_t begin, std::int64_t end) {
  using Column = Eigen::Matrix<Real, Eigen::Dynamic, 1>;
  Forest<Real> forest(1, layout.size());
  for (std::int64_t a = begin; a < end; ++a) {
    const Column v = p.V.row(a).transpose().cast<Real>(), u = p.K.row(a).transpose().cast<Real>();
    Column enlarged(layout.size());
    enlarge(layout, v.data(), u.data(), enlarged.data());
    set_key(forest.next(), static_cast<Real>(kLog2E * p.K.row(a).dot(p.q)), enlarged.data(), layout.size());
    forest.push({0, a});
  }
  return forest;
}

template <class Real>
std::vector<Real> root(Forest<Real> forest) {
  const std::span<const Real> state = forest.fold();
  return {state.begin(), state.end()};
}

const MomentLayout kLayouts[] = {{kValueDim, Products::Squares, kQueryDim}, {kValueDim, Products::Triangle, kQueryDim}};

/// @tested{eq_cov, eq. (cov)}
TEST_CASE_TEMPLATE("moment state: covariance and entropy are those of the closed forms", Real, float, double) {
  const double u = std::numeric_limits<Real>::epsilon() / 2;
  for (const std::int64_t N : {1, 2, 7, 64, 301}) {
    const Workload p(N);
    const Matrix C = covariance(p.q, p.K, p.V, Vector());
    for (const MomentLayout& layout : kLayouts) {
      CAPTURE(N);
      const std::vector<Real> state = root(forest_of<Real>(p, layout, 0, N));
      const Matrix got = read_covariance(layout, state.data());
      const Matrix want = layout.products == Products::Triangle ? C : Matrix(C.diagonal());
      CHECK((got - want).cwiseAbs().maxCoeff<Eigen::PropagateNaN>() < 60 * u * std::pow(p.V.cwiseAbs().maxCoeff(), 2));
      CHECK(std::abs(p.entropy_in(layout, state) - entropy(p.q, p.K, p.V, Vector())) <
            60 * u * (p.K * p.q).cwiseAbs().maxCoeff());
    }
  }
}

TEST_CASE("moment state: edges") {
  const Workload p(9);
  for (const MomentLayout& layout : kLayouts) {
    const bool all = layout.products == Products::Triangle;

    // All keys masked.
    const std::vector<double> empty = root(forest_of<double>(p, layout, 0, 0));
    CHECK(read_covariance(layout, empty.data()).norm() == 0);
    CHECK(p.entropy_in(layout, empty) == 0);

    // The state of a single key, as decode_shard() has it: only its squares are rounded.
    std::vector<double> one(static_cast<std::size_t>(state_size(layout.size())));
    const Vector v = p.V.row(0).transpose(), u = p.K.row(0).transpose();
    one[kShift] = kLog2E * p.K.row(0).dot(p.q), one[kSum] = 1;
    enlarge(layout, v.data(), u.data(), one.data() + kValues);
    CHECK(read_covariance(layout, one.data()).norm() < 4e-16 * v.squaredNorm());
    CHECK(std::abs(p.entropy_in(layout, one)) < 1e-14);

    // A masked key may have any value. A score of +inf or NaN makes every result NaN.
    Workload bad = p;
    bad.K.row(4) = -kInf * p.q.cwiseSign().transpose();
    bad.V.row(4).setConstant(kNaN);
    const std::vector<double> unseen = root(forest_of<double>(bad, layout, 0, 9));
    CHECK(p.entropy_in(layout, unseen) == doctest::Approx(entropy(p.q, bad.K, bad.V, Vector())).epsilon(1e-13));
    CHECK(read_covariance(layout, unseen.data())(1, 0) ==
          doctest::Approx(covariance(p.q, bad.K, bad.V, Vector())(1, all ? 0 : 1)).epsilon(1e-13));
    for (const double score : {kInf, kNaN}) {
      bad.K.row(4) = score * p.q.cwiseSign().transpose();
      const std::vector<double> spoilt = root(forest_of<double>(bad, layout, 0, 9));
      CHECK(read_covariance(layout, spoilt.data()).array().isNaN().all());
      CHECK(std::isnan(p.entropy_in(layout, spoilt)));
    }

    // An Inf value affects only the results that it enters, and not the entropy.
    bad = p;
    bad.V(4, 2) = kInf;
    const std::vector<double> inf = root(forest_of<double>(bad, layout, 0, 9));
    const Matrix got = read_covariance(layout, inf.data());
    CHECK(std::isnan(got(2, all ? 2 : 0)));
    CHECK(got(1, all ? 1 : 0) == doctest::Approx(covariance(p.q, p.K, p.V, Vector())(1, 1)).epsilon(1e-13));
    CHECK(p.entropy_in(layout, inf) == doctest::Approx(entropy(p.q, p.K, p.V, Vector())).epsilon(1e-13));

    // Every NaN has the same bits, whatever NaN the state holds.
    std::vector<double> negative = unseen;
    negative[kSum] = -kNaN;
    for (const double nan :
         {got(2, all ? 2 : 0), read_covariance(layout, negative.data())(0, 0), p.entropy_in(layout, negative)}) {
      CHECK(std::bit_cast<std::uint64_t>(nan) == std::bit_cast<std::uint64_t>(kNaN));
    }
  }

  CHECK_INVALID(read_entropy({kValueDim, Products::Squares, 0}, root(forest_of<double>(p, kLayouts[0], 0, 9)).data(), {}),
                "0 factors for 0 elements");
}

/// @tested{eq_cov, eq. (cov)}
TEST_CASE("moment state: decode_shard over enlarged values gives variance and entropy, and the same bits of z and lse") {
  constexpr std::int64_t b = 2, n_h = 4, n_kv = 2, N = 150, d_h = 16, d_v = 5;
  std::mt19937 random(kSeed);
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const Tensor q = normal_tensor(random, {b, n_h, 1, d_h}, dtype);
    const Tensor k = normal_tensor(random, {b, n_kv, N, d_h}, dtype), v = normal_tensor(random, {b, n_kv, N, d_v}, dtype);
    const std::vector<std::int64_t> lengths{N, 97};
    const double scale = 0.25;
    const MomentLayout layout{d_v, Products::Squares, d_h};
    const Tensor enlarged(enlarge_values(layout, k, v), {b, n_kv, N, layout.size()});

    // Two ranks, cut at a leaf.
    const auto rank = [&](std::int64_t begin, std::int64_t end) {
      return decode_shard(q, {k.view().positions(begin, end), enlarged.view().positions(begin, end), begin}, lengths, scale);
    };
    Forest<float> states = rank(0, 64);
    const Forest<float> right = rank(64, N);
    states.append(right.subtrees(), right.states().data());
    const std::span<const float> joined = states.fold();
    Forest<float> one_rank = rank(0, N);
    CHECK(same_bits(joined, one_rank.fold()));

    // It contains the result of the decode without products.
    Forest<float> plain = decode_shard(q, {k, v, 0}, lengths, scale);
    const std::span<const float> plain_states = plain.fold();
    for (std::int64_t row = 0; row < b * n_h; ++row) {
      const float* state = joined.data() + row * state_size(layout.size());
      CHECK(same_bits(std::span<const float>(state, 2 + d_v),
                      plain_states.subspan(static_cast<std::size_t>(row * (2 + d_v)), 2 + d_v)));

      // The oracle, from the stored elements.
      const std::int64_t i = row / n_h, h = row % n_h, n = lengths[static_cast<std::size_t>(i)];
      Vector query = Eigen::Map<const Vector>(row_of(q, i, h, 0).data(), d_h) * scale;
      Matrix K(n, d_h), V(n, d_v);
      for (std::int64_t a = 0; a < n; ++a) {
        K.row(a) = Eigen::Map<const Eigen::RowVectorXd>(row_of(k, i, h / 2, a).data(), d_h);
        V.row(a) = Eigen::Map<const Eigen::RowVectorXd>(row_of(v, i, h / 2, a).data(), d_v);
      }
      const Vector variance = read_covariance(layout, state).col(0);
      CHECK((variance - covariance(query, K, V, Vector()).diagonal()).cwiseAbs().maxCoeff<Eigen::PropagateNaN>() < 3e-6);
      const double H = read_entropy(layout, state, std::span<const double>(query.data(), d_h));
      CHECK(std::abs(H - entropy(query, K, V, Vector())) < 5e-6);
    }
  }

  const Tensor k = normal_tensor(random, {1, 1, 2, 3}), v = normal_tensor(random, {1, 1, 2, 4});
  CHECK_INVALID(enlarge_values({4, Products::Squares, 2}, k, v), "layout of values of 4 and keys of 2");
}

}  // namespace moment_state_test
