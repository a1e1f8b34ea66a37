// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The error bound: the decode stays within it, a broken one does not, and it is tight enough to be useful.
#include "reference/decode/decode.hpp"
#include "reference/oracle/error_bound.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/tensors.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace error_bound_test {

using namespace tree_attn;
using namespace tree_attn::test;

constexpr double kU = 0x1p-24;
constexpr float kInfF = std::numeric_limits<float>::infinity();
constexpr unsigned kSeed = 42;

/// One query, one head, on the CPU.
DecodeOutput decode_in_float(const TensorView& q, const TensorView& k, const TensorView& v, double scale) {
  return finish_rows(decode_shard(q, {k, v, 0}, std::vector{k.shape[2]}, scale).fold(), 1, v.shape[3]);
}

TEST_CASE("error_bound: the errors of the decode in float are within it") {
  std::mt19937 random(kSeed);
  double worst_out = 0, worst_lse = 0;
  for (const std::int64_t N : {1, 2, 17, 300, 4096}) {
    for (const std::int64_t d : {1, 16, 128}) {
      for (const float sigma : {1.0f, 30.0f, 1000.0f}) {
        for (const DType dtype : {DType::F32, DType::BF16}) {
          const Tensor q = normal_tensor(random, {1, 1, 1, d}, dtype, sigma), k = normal_tensor(random, {1, 1, N, d}, dtype);
          const Tensor v = normal_tensor(random, {1, 1, N, d}, dtype);
          const double scale = 1 / std::sqrt(static_cast<double>(d));
          const AttentionResult want = attention(q, k, v);
          const ErrorBound bound = error_bound(q, k, v, {}, tree_decode_model(N));
          const DecodeOutput got = decode_in_float(q, k, v, scale);
          const Comparison out = compare(got.out, want.out, bound.out), lse = compare(got.lse, want.lse, bound.lse);
          CHECK_MESSAGE(out.ok, out.message);
          CHECK_MESSAGE(lse.ok, lse.message);
          worst_out = std::max(worst_out, out.worst);
          worst_lse = std::max(worst_lse, lse.worst);
        }
      }
    }
  }
  MESSAGE("largest error over bound: out ", worst_out, ", lse ", worst_lse);
  CHECK(worst_out > 1e-3);
}

TEST_CASE("error_bound: a decoder that loses a key fails") {
  std::mt19937 random(kSeed + 2);
  const std::int64_t N = 1000;
  const Tensor q = normal_tensor(random, {1, 1, 1, 64}), k = normal_tensor(random, {1, 1, N, 64}),
               v = normal_tensor(random, {1, 1, N, 64});
  const ErrorBound bound = error_bound(q, k, v, {}, tree_decode_model(N));
  const AttentionResult want = attention(q, k, v);
  for (const auto& [begin, end] : {std::pair{1, 1000}, {0, 999}}) {
    const DecodeOutput got = decode_in_float(q, k.view().positions(begin, end), v.view().positions(begin, end), 0.125);
    CHECK_FALSE(compare(got.out, want.out, bound.out).ok);
  }
}

TEST_CASE("error_bound: a weight below 2^-126 is dropped with its value, however large that is, and the bound contains it") {
  // Scores of 0 and -130 in base two: the example of docs/II.1-state.md.
  const Tensor q({1}, {1, 1, 1, 1}), k({0, static_cast<float>(-130 / kLog2E)}, {1, 1, 2, 1}),
      v({1e-3f, 1e38f}, {1, 1, 2, 1});
  const AttentionResult want = attention(q, k, v, {.scale = 1.0});
  const DecodeOutput got = decode_in_float(q, k, v, 1.0);
  CHECK(got.out[0] == 1e-3f);
  CHECK(want.out[0] == doctest::Approx(0.0745).epsilon(1e-3).scale(0));
  const Comparison out = compare(got.out, want.out, error_bound(q, k, v, {.scale = 1.0}, tree_decode_model(2)).out);
  CHECK_MESSAGE(out.ok, out.message);
  CHECK(out.worst > 0.999);
}

TEST_CASE("error_bound: hand-computed values") {
  // One key: w = 1, W = 0, no additions. Delta = (1.5 * 2 + 1) u scale (|1 * 2| + |-3 * 4|), which cannot change the average
  // of one value.
  const Tensor q({1, -3}, {1, 1, 1, 2}), k({2, 4}, {1, 1, 1, 2}), v({-5, 0, 0.5f}, {1, 1, 1, 3});
  const ErrorModel model{.roundoff = kU,
                         .n_additions = 7,
                         .n_rescalings = 2,
                         .exp_error = 4,
                         .score_error = 1.5,
                         .weight_error = 50,
                         .output_roundoff = 0x1p-8};
  ErrorBound bound = error_bound(q, k, v, {.scale = -0.5}, model);
  const double Delta = 4 * kU * 0.5 * 14, of_sums = (14 + 2 * 6 * 3 + 3) * kU + 0x1p-8;
  CHECK(bound.out[0] == doctest::Approx(5 * of_sums).epsilon(1e-14).scale(0));
  CHECK(bound.out[1] == 0);
  CHECK(bound.out[2] == doctest::Approx(0.5 * of_sums).epsilon(1e-14).scale(0));
  CHECK(bound.lse[0] == doctest::Approx(8 * kU * 5 + Delta + 57 * kU).epsilon(1e-14).scale(0));
  // Twice that key, with other values: half of each.
  bound = error_bound(q, Tensor({2, 4, 2, 4}, {1, 1, 2, 2}), Tensor({-5, 0, 0.5f, 5, 1, 0.5f}, {1, 1, 2, 3}),
                      {.scale = -0.5}, model);
  const double factor = std::expm1(2 * (Delta + 50 * kU)) + of_sums;
  CHECK(bound.out[0] == doctest::Approx(5 * factor).epsilon(1e-13).scale(0));
  CHECK(bound.out[1] == doctest::Approx(0.5 * factor).epsilon(1e-13).scale(0));
  CHECK(bound.out[2] == doctest::Approx(0.5 * of_sums).epsilon(1e-13).scale(0));

  // Two keys 10 apart: W = 10. Two keys 100 apart: the far one contributes in full and does not enter W.
  const Tensor one({1}, {1, 1, 1, 1}), near({0, -10}, {1, 1, 2, 1}), far({0, -100}, {1, 1, 2, 1}),
      values({1, 8}, {1, 1, 2, 1});
  bound = error_bound(one, near, values, {.scale = 1.0}, {.roundoff = kU});
  const double w = 1 / (1 + std::exp(10.0));
  CHECK(bound.out[0] == doctest::Approx((std::expm1((2 * 2 * 10 + 2 * 10) * kU) + (2 * 4 + 3) * kU) * (1 - w + 8 * w))
                            .epsilon(1e-13)
                            .scale(0));
  bound = error_bound(one, far, Tensor({0, 8}, {1, 1, 2, 1}), {.scale = 1.0}, {.roundoff = kU});
  CHECK(bound.out[0] == doctest::Approx(8 * std::exp(-100.0)).epsilon(1e-13).scale(0));

  CHECK(tree_decode_model(0).n_additions == 2);
  CHECK(tree_decode_model(1).n_additions == 2);
  CHECK(tree_decode_model(4096).n_additions == 14);
  CHECK(tree_decode_model(4097).n_additions == 15);
  CHECK(tree_decode_model(2, 0x1p-53).roundoff == 0x1p-53);
}

TEST_CASE("error_bound: errors of scores that are no small numbers") {
  // Scores of 0 and -6 with errors of up to 0 and 4.8. The key that seems to be far is not: it may weigh e^-1.2 in place of
  // e^-6.
  const ErrorModel model{.roundoff = 0.4, .exp_error = -2};
  const Tensor q({1}, {1, 1, 1, 1}), k({0, -6}, {1, 1, 2, 1}), v({0, 1}, {1, 1, 2, 1});
  const double z = 1 / (1 + std::exp(6)), largest = 1 / (1 + std::exp(1.2));
  const ErrorBound bound = error_bound(q, k, v, {.scale = 1.0}, model);
  CHECK(bound.out[0] > largest - z);
  CHECK(bound.out[0] < 2.5);
}

TEST_CASE("error_bound: an average of values stays among them, however large the scores are") {
  // Scores of 1.5e38, rounded to multiples of 1e31: the errors say nothing about the weights.
  const Tensor q({1e19f, 1e19f}, {1, 2, 1, 1}), k({1.5e19f, -1.5e19f, 1.5e19f}, {1, 1, 3, 1}),
      v({1, -1, 0, 1, 2, 0, 1, 0, 0}, {1, 1, 3, 3});
  const ErrorBound bound = error_bound(q, k, v, {.scale = 1.0}, tree_decode_model(3));
  const double u = (2 * 4 + 2 * 4 + 3) * kU;
  for (std::size_t r : {0, 3}) {
    CHECK(bound.out[r] == doctest::Approx(u).epsilon(1e-13).scale(0));
    CHECK(bound.out[r + 1] == doctest::Approx(3 + 2 * u).epsilon(1e-13).scale(0));
    CHECK(bound.out[r + 2] == 0);
  }
}

TEST_CASE("error_bound: edges") {
  const Tensor q({1, 1}, {1, 2, 1, 1}), k({0, -kInfF, 1}, {1, 1, 3, 1}), v({1, kInfF, 2}, {1, 1, 3, 1});
  // A masked key has no effect; with all keys masked the bound is 0; a result that is not finite has no bound.
  CHECK(std::isfinite(error_bound(q, k, v, {}, {}).out[0]));
  CHECK(error_bound(q, k, v, {.lengths = {0}}, {}).out == std::vector<double>{0, 0});
  CHECK(error_bound(q, k, v, {.lengths = {0}}, {}).lse == std::vector<double>{0, 0});
  const Tensor nan({1, std::numeric_limits<float>::quiet_NaN()}, {1, 2, 1, 1});
  CHECK_FALSE(std::isfinite(error_bound(nan, k, v, {}, {}).out[1]));
  CHECK(std::isfinite(error_bound(nan, k, v, {}, {}).out[0]));
  CHECK(error_bound(TensorView::dense(nullptr, DType::F32, {0, 2, 1, 1}),
                    TensorView::dense(nullptr, DType::F32, {0, 1, 3, 1}),
                    TensorView::dense(nullptr, DType::F32, {0, 1, 3, 1}), {}, {})
            .out.empty());
  CHECK_THROWS_AS(error_bound(q, k, q, {}, {}), std::invalid_argument);
}

/// |got - want| > bound is false for NaN: tests that count such elements take a result of NaN for a right one.
TEST_CASE("error_bound: no comparison takes NaN, Inf or another number of elements for right") {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
  const std::vector<double> want{1, -2, 3};
  for (const double bad : {kNaN, kInf, -kInf}) {
    const std::vector<double> one{1, bad, 3};
    CHECK_FALSE(compare(one, want, kInf).ok);
    CHECK_FALSE(compare(want, one, kInf).ok);
    CHECK_FALSE(compare(one, one, kInf).ok);
    CHECK(compare(one, one, 0, NonFinite::Match).ok);
    CHECK_FALSE(compare(one, want, kInf, NonFinite::Match).ok);
    CHECK_FALSE(compare(want, one, kInf, NonFinite::Match).ok);
  }
  CHECK_FALSE(compare(std::vector<double>{1, -2, 3, 4}, want, 1).ok);
  CHECK_FALSE(compare(want, want, kNaN).ok);
  CHECK(larger_error(1, kNaN) == kInf);
}

}  // namespace error_bound_test
