// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The oracle compared with its definition, query by query, and all its edges.
#include "reference/energy/energy.hpp"
#include "reference/oracle/attention.hpp"
#include "reference/oracle/error_bound.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/message.hpp"
#include "tests/support/tensors.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <stdexcept>

namespace attention_test {

using namespace tree_attn;
using namespace tree_attn::test;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr float kInfF = std::numeric_limits<float>::infinity();
constexpr float kNaNF = std::numeric_limits<float>::quiet_NaN();
constexpr unsigned kSeed = 6;

/// The definition: of every query the scores of the keys that it sees, and the formulas of energy.hpp over them.
AttentionResult naive(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& options) {
  AttentionResult result;
  const std::int64_t group = q.shape[1] / std::max<std::int64_t>(1, k.shape[1]), d_v = v.shape[3];
  const double scale = options.scale ? *options.scale : 1 / std::sqrt(static_cast<double>(q.shape[3]));
  const auto vector = [](const TensorView& x, std::int64_t i, std::int64_t h, std::int64_t a) -> Vector {
    return Eigen::Map<const Vector>(row_of(x, i, h, a).data(), x.shape[3]);
  };
  for (std::int64_t b = 0; b < q.shape[0]; ++b) {
    for (std::int64_t h = 0; h < q.shape[1]; ++h) {
      for (std::int64_t i = 0; i < q.shape[2]; ++i) {
        const std::int64_t N = options.lengths.empty() ? k.shape[2] : options.lengths[static_cast<std::size_t>(b)];
        const std::int64_t own = options.rule.causal ? N - q.shape[2] + i : N - 1;  // the last key that it may see
        Vector s = Vector::Constant(N + 1, -kInf);
        Matrix V = Matrix::Zero(N + 1, d_v);
        for (std::int64_t a = 0; a < N; ++a) {
          if (a > own || (options.rule.window > 0 && a <= own - options.rule.window && a >= options.rule.sinks)) continue;
          s(a) = scale * vector(k, b, h / group, a).dot(vector(q, b, h, i));
          V.row(a) = vector(v, b, h / group, a).transpose();
        }
        if (!options.sink.empty()) s(N) = options.sink[static_cast<std::size_t>(h)];
        const auto add = [&](const Vector& r, std::vector<double>& means, std::vector<double>& lse) {
          const Vector mean = mean_value(r, V);
          means.insert(means.end(), mean.begin(), mean.end()), lse.push_back(log_sum_exp(r));
        };
        add(s, result.out, result.lse);
        if (!options.zeta) continue;
        for (std::int64_t a = 0; a <= N; ++a)
          if (s(a) != -kInf) s(a) += V.row(a).dot(vector(*options.zeta, b, h, i));
        add(s, result.gradient, result.energy);
      }
    }
  }
  return result;
}

/// Compares attention() with naive(), within the error bound of double arithmetic.
void check_against_naive(const TensorView& q, const TensorView& k, const TensorView& v,
                         const AttentionOptions& options = {}) {
  const AttentionResult got = attention(q, k, v, options), want = naive(q, k, v, options);
  ErrorBound bound = error_bound(q, k, v, options, {.roundoff = 0x1p-53, .n_additions = static_cast<double>(k.shape[2])});
  for (double& x : bound.out) x = std::isfinite(x) ? 2 * x : 0;
  for (double& x : bound.lse) x = std::isfinite(x) ? 2 * x : 0;
  const Comparison all[] = {compare(got.out, want.out, bound.out, NonFinite::Match),
                            compare(got.lse, want.lse, bound.lse, NonFinite::Match),
                            compare(got.gradient, want.gradient, 1e-13, NonFinite::Match),
                            compare(got.energy, want.energy, 1e-13, NonFinite::Match)};
  for (const Comparison& each : all) CHECK_MESSAGE(each.ok, each.message);
}

/// @tested{eq_5, eq. (5)}
/// @tested{eq_7, eq. (7)}
TEST_CASE("attention: equals the loops of its definition for head sizes, groups and storage types") {
  std::mt19937 random(kSeed);
  for (const std::int64_t d : {1, 46, 59, 111, 512}) {
    for (const DType dtype : {DType::F64, DType::F32, DType::F16, DType::BF16}) {
      const Tensor q = normal_tensor(random, {2, 6, 1, d}, dtype), k = normal_tensor(random, {2, 2, 67, d}, dtype);
      check_against_naive(q, k, normal_tensor(random, {2, 2, 67, d}, dtype));
    }
  }
  for (const std::int64_t n_kv : {1, 2, 3, 6}) {
    const Tensor q = normal_tensor(random, {2, 6, 3, 16}), k = normal_tensor(random, {2, n_kv, 20, 16});
    check_against_naive(q, k, normal_tensor(random, {2, n_kv, 20, 5}));
    check_against_naive(q, k, normal_tensor(random, {2, n_kv, 20, 40}), {.scale = 0.7});
  }
}

TEST_CASE("attention: more keys than one block of keys, more scores than one block of rows") {
  std::mt19937 random(kSeed + 1);
  for (const std::int64_t N : {255, 256, 257, 1000}) {
    check_against_naive(normal_tensor(random, {1, 2, 2, 8}), normal_tensor(random, {1, 1, N, 8}),
                        normal_tensor(random, {1, 1, N, 3}), {.rule = {.causal = true}});
  }
  // A block has 2^23 scores, so 40 rows of 2^18 keys need two. With strides of 0, keys and values take no more memory.
  const std::int64_t N = std::int64_t{1} << 18;
  const Tensor q = normal_tensor(random, {1, 2, 20, 1}), k = normal_tensor(random, {1, 1, 1, 1}),
               v = normal_tensor(random, {1, 1, 1, 1});
  TensorView k_view = k, v_view = v;
  k_view.shape[2] = v_view.shape[2] = N;
  k_view.stride[2] = v_view.stride[2] = 0;
  const AttentionResult got = attention(q, k_view, v_view);
  const double key = row_of(k, 0, 0, 0)[0], value = row_of(v, 0, 0, 0)[0];
  for (std::int64_t row = 0; row < 40; ++row) {
    const double s = row_of(q, 0, row / 20, row % 20)[0] * key;
    CHECK(got.out[static_cast<std::size_t>(row)] == doctest::Approx(value).epsilon(1e-13));
    CHECK(got.lse[static_cast<std::size_t>(row)] == doctest::Approx(s + std::log(static_cast<double>(N))).epsilon(1e-14));
  }
}

TEST_CASE("attention: strided views") {
  std::mt19937 random(kSeed + 2);
  // k and v are interleaved as [b, N, 2, n_kv, d], as in many caches, and start at an odd byte.
  const std::int64_t b = 2, N = 13, n_kv = 2, d = 7;
  const std::vector<float> elements = normal_elements(random, b * N * 2 * n_kv * d);
  std::vector<std::byte> bytes(elements.size() * 2 + 1);
  store(elements.data(), DType::BF16, static_cast<std::int64_t>(elements.size()), bytes.data() + 1);
  TensorView k{bytes.data() + 1, DType::BF16, {b, n_kv, N, d}, {N * 2 * n_kv * d, d, 2 * n_kv * d}};
  TensorView v = k;
  v.data += 2 * n_kv * d;
  const Tensor q = normal_tensor(random, {b, 4, 2, d});
  check_against_naive(q, k, v);
  // The same elements, dense.
  std::vector<float> k_elements, v_elements;
  for_each_row(k.shape, [&](auto... row) {
    for (const double x : row_of(k, row...)) k_elements.push_back(static_cast<float>(x));
    for (const double x : row_of(v, row...)) v_elements.push_back(static_cast<float>(x));
  });
  CHECK(attention(q, k, v).out ==
        attention(q, Tensor(k_elements, {b, n_kv, N, d}), Tensor(v_elements, {b, n_kv, N, d})).out);
}

TEST_CASE("attention: causal, with fewer keys than queries too") {
  std::mt19937 random(kSeed + 3);
  for (const std::int64_t N : {1, 3, 5, 12}) {
    const Tensor q = normal_tensor(random, {2, 4, 5, 8}), k = normal_tensor(random, {2, 2, N, 8}),
                 v = normal_tensor(random, {2, 2, N, 6});
    check_against_naive(q, k, v, {.rule = {.causal = true}});
    check_against_naive(q, k, v, {.rule = {.causal = true}, .lengths = {N - 1, N}});
    check_against_naive(q, k, v, {.rule = {.causal = true, .window = 3, .sinks = 2}, .sink = {1, -kInf, 0, 2}});
    check_against_naive(q, k, v, {.rule = {.causal = false, .window = 2}, .sink = {-2, 30, 0, -1}});
  }
  // Query i of 5 sees the keys 0 .. 3 - 5 + i.
  const Tensor q(std::vector<float>(5, 0), {1, 1, 5, 1}), k(std::vector<float>(3, 0), {1, 1, 3, 1}),
      v({1, 2, 6}, {1, 1, 3, 1});
  const AttentionResult got = attention(q, k, v, {.rule = {.causal = true}});
  CHECK(got.out == std::vector<double>{0, 0, 1, 1.5, 3});
  CHECK(got.lse == std::vector<double>{-kInf, -kInf, 0, std::log(2.0), std::log(3.0)});
}

TEST_CASE("attention: keys after the last visible one are not read") {
  std::mt19937 random(kSeed + 4);
  for (const bool causal : {false, true}) {
    const Tensor q = normal_tensor(random, {3, 4, 2, 8});
    Tensor k = normal_tensor(random, {3, 2, 9, 8}), v = normal_tensor(random, {3, 2, 9, 8});
    const AttentionOptions options{.rule = {.causal = causal}, .lengths = {0, 4, 9}};
    const AttentionResult clean = attention(q, k, v, options);
    check_against_naive(q, k, v, options);
    for (std::int64_t b = 0; b < 3; ++b) {
      for (std::int64_t a = options.lengths[static_cast<std::size_t>(b)]; a < 9; ++a) {
        for (std::int64_t c = 0; c < 8; ++c) k.set(b, a % 2, a, c, kNaNF), v.set(b, 1, a, c, kInfF);
      }
    }
    const AttentionResult dirty = attention(q, k, v, options);
    CHECK(dirty.out == clean.out);
    CHECK(dirty.lse == clean.lse);
  }
  // For AddressSanitizer: the view has 1000 keys, the array holds 5.
  const Tensor q = normal_tensor(random, {1, 1, 1, 8}), k = normal_tensor(random, {1, 1, 5, 8});
  TensorView view = k;
  view.shape[2] = 1000;
  CHECK(attention(q, view, view, {.lengths = {5}}).out == attention(q, k, k).out);
}

TEST_CASE("attention: a source does not read the value of a masked key") {
  // Two causal queries: the first sees one key, the second both.
  const Tensor q({1, 1}, {1, 1, 2, 1}), k({3, 4}, {1, 1, 2, 1}), zeta({0.5f, 0.5f}, {1, 1, 2, 1});
  for (const float value : {kInfF, kNaNF}) {
    const AttentionResult got =
        attention(q, k, Tensor({2, value}, {1, 1, 2, 1}), {.scale = 1.0, .rule = {.causal = true}, .zeta = zeta});
    CHECK(got.energy[0] == 4);
    CHECK(got.gradient[0] == 2);
    CHECK(std::isnan(got.gradient[1]));
  }
}

TEST_CASE("attention: huge logits") {
  std::mt19937 random(kSeed + 5);
  for (const float logit : {1e4f, -1e4f, -5.2e5f, 5.2e5f, 1e30f}) {
    // All scores are within a few units of the logit.
    Tensor q = normal_tensor(random, {1, 1, 1, 2}), k = normal_tensor(random, {1, 1, 30, 2});
    q.set(0, 0, 0, 0, logit);
    for (std::int64_t a = 0; a < 30; ++a) k.set(0, 0, a, 0, 1);
    const Tensor v = normal_tensor(random, {1, 1, 30, 4});
    check_against_naive(q, k, v, {.scale = 1.0});
  }
  // Scores far apart: only the largest has weight.
  const Tensor q({1}, {1, 1, 1, 1}), k({-5.2e5f, 1e4f, -1e4f}, {1, 1, 3, 1}), v({1, 2, 3}, {1, 1, 3, 1});
  CHECK(attention(q, k, v).out == std::vector<double>{2});
  CHECK(attention(q, k, v).lse == std::vector<double>{1e4});
}

TEST_CASE("attention: NaN and Inf anywhere in q, k and v, as in the loops") {
  std::mt19937 random(kSeed + 6);
  for (int i = 0; i < 60; ++i) {
    Tensor q = normal_tensor(random, {2, 4, 3, 5}), k = normal_tensor(random, {2, 2, 11, 5}),
           v = normal_tensor(random, {2, 2, 11, 4});
    const float bad = i % 3 == 0 ? kNaNF : i % 3 == 1 ? kInfF : -kInfF;
    for (int n = 0; n < 3; ++n) {
      const auto at = static_cast<std::int64_t>(random() % 11);
      if (i % 4 != 1) k.set(at % 2, (at / 2) % 2, at, at % 5, bad);
      if (i % 4 != 0) v.set(at % 2, (at / 3) % 2, at, at % 4, bad);
      if (i % 4 == 3) q.set(at % 2, at % 4, at % 3, at % 5, bad);
    }
    check_against_naive(q, k, v, {.rule = {.causal = i % 2 == 0}, .lengths = {11, 7}});
  }
  // exp(-700) is positive, exp(-800) is 0, and 0 times Inf is NaN. A key with a score of -inf has no value.
  const Tensor one({1}, {1, 1, 1, 1}), v({1, kInfF}, {1, 1, 2, 1});
  const auto out_beside = [&](float score) { return attention(one, Tensor({0, score}, {1, 1, 2, 1}), v).out[0]; };
  CHECK(out_beside(-700) == kInf);
  CHECK(std::isnan(out_beside(-800)));
  CHECK(out_beside(-kInfF) == 1);
}

/// @tested{obs_1, Obs. 1}
TEST_CASE("attention: energy and gradient at zeta are those of energy.hpp for one query") {
  std::mt19937 random(kSeed + 7);
  const Tensor q = normal_tensor(random, {2, 4, 3, 8}), k = normal_tensor(random, {2, 2, 10, 8}),
               v = normal_tensor(random, {2, 2, 10, 6});
  const Tensor zeta = normal_tensor(random, {2, 4, 3, 6});
  check_against_naive(q, k, v, {.rule = {.causal = true}, .lengths = {10, 2}, .zeta = zeta});
  check_against_naive(q, k, v, {.sink = {1, -kInf, 0, 2}, .zeta = zeta});
  // At zeta = 0 the gradient is the output and the energy is lse.
  const Tensor zero(std::vector<float>(2 * 4 * 3 * 6), {2, 4, 3, 6});
  const AttentionResult at_zero = attention(q, k, v, {.zeta = zero});
  CHECK(at_zero.gradient == at_zero.out);
  CHECK(at_zero.energy == at_zero.lse);
  CHECK(attention(q, k, v).energy.empty());
  CHECK(attention(q, k, v).gradient.empty());
}

TEST_CASE("attention: axes of length 0") {
  const auto sizes = [](std::int64_t b, std::int64_t n_h, std::int64_t l, std::int64_t N, std::int64_t d_v) {
    const TensorView q = TensorView::dense(nullptr, DType::F32, {b, n_h, l, 4}),
                     k = TensorView::dense(nullptr, DType::F32, {b, n_h, N, 4});
    return attention(q, k, TensorView::dense(nullptr, DType::F32, {b, n_h, N, d_v}));
  };
  CHECK((sizes(0, 2, 1, 8, 4).out.empty() && sizes(0, 2, 1, 8, 4).lse.empty()));
  CHECK((sizes(3, 0, 1, 8, 4).out.empty() && sizes(0, 0, 0, 0, 0).lse.empty()));
  // No keys: every query has a result.
  const Tensor q(std::vector<float>(2 * 2 * 3 * 4, 1), {2, 2, 3, 4});
  const TensorView none = TensorView::dense(nullptr, DType::F32, {2, 1, 0, 4});
  const AttentionResult got = attention(q, none, none, {.zeta = q});
  CHECK(got.out == std::vector<double>(48, 0));
  CHECK(got.gradient == std::vector<double>(48, 0));
  CHECK(got.lse == std::vector<double>(12, -kInf));
  CHECK(got.energy == std::vector<double>(12, -kInf));
  // No queries, no components.
  const Tensor k(std::vector<float>(2 * 5 * 4, 1), {2, 1, 5, 4});
  CHECK(attention(TensorView::dense(nullptr, DType::F32, {2, 2, 0, 4}), k, k).lse.empty());
  const AttentionResult no_components = attention(q, k, TensorView::dense(nullptr, DType::F32, {2, 1, 5, 0}));
  CHECK(no_components.out.empty());
  CHECK(no_components.lse[11] == doctest::Approx(2 + std::log(5.0)).epsilon(1e-15));
  // No queries: the number of heads costs no time.
  const TensorView heads = TensorView::dense(nullptr, DType::F32, {1, std::int64_t{1} << 47, 0, 4});
  CHECK(attention(TensorView::dense(nullptr, DType::F32, {1, 0, 1, 4}), heads, heads).lse.empty());
}

TEST_CASE("check_shapes: one line that names the argument and the values") {
  const std::vector<float> elements(4096, 1);
  const auto view = [&elements](Shape shape) { return TensorView::dense(elements.data(), DType::F32, shape); };
  const auto check = [&view](Shape q, Shape k, Shape v, const char* message) {
    CHECK_THROWS_WITH_AS(attention(view(q), view(k), view(v)), message, std::invalid_argument);
  };
  check({1, 2, 1, 128}, {1, 2, 8, 64}, {1, 2, 8, 64}, "attention: head_dim of q (128) and k (64) differ");
  check({1, 2, 1, 4}, {1, 2, 8, 4}, {1, 2, 9, 4}, "attention: k has 8 keys, v has 9");
  check({1, 7, 1, 4}, {1, 2, 8, 4}, {1, 2, 8, 4},
        "attention: 7 query heads are not a multiple of 2 KV heads (q, k, v are [b, heads, positions, d])");
  check({1, 2, 1, 4}, {1, 0, 8, 4}, {1, 0, 8, 4},
        "attention: 2 query heads are not a multiple of 0 KV heads (q, k, v are [b, heads, positions, d])");
  check({1, 2, 1, 4}, {1, 2, 8, 4}, {1, 1, 8, 4},
        "attention: k has 2 KV heads, v has 1 (q, k, v are [b, heads, positions, d])");
  check({2, 2, 1, 4}, {1, 2, 8, 4}, {1, 2, 8, 4}, "attention: batch of q (2) and k (1) differ");
  check({1, 2, 1, 4}, {1, 2, 8, 4}, {3, 2, 8, 4}, "attention: batch of k (1) and v (3) differ");
  check({1, 2, 1, 0}, {1, 2, 8, 0}, {1, 2, 8, 4}, "attention: head_dim of q and k is 0");
  check({1, 2, -1, 4}, {1, 2, 8, 4}, {1, 2, 8, 4}, "attention: q has an axis of negative length -1");
  const TensorView nothing = TensorView::dense(nullptr, DType::F32, {1, 2, 8, 4});
  CHECK_INVALID(check_shapes(view({1, 2, 1, 4}), nothing, view({1, 2, 8, 4})), "attention: k has no data");
}

TEST_CASE("check_options: lengths and zeta") {
  std::mt19937 random(kSeed);
  const Tensor q = normal_tensor(random, {2, 2, 1, 4}), k = normal_tensor(random, {2, 2, 8, 4}),
               v = normal_tensor(random, {2, 2, 8, 6});
  const auto check = [&](const AttentionOptions& options, const char* message) {
    CHECK_THROWS_WITH_AS(attention(q, k, v, options), message, std::invalid_argument);
  };
  check({.lengths = {8}}, "attention: 1 lengths for a batch of 2");
  check({.lengths = {8, 9}}, "attention: length 9 of batch entry 1 is not in [0, 8]");
  check({.lengths = {-1, 8}}, "attention: length -1 of batch entry 0 is not in [0, 8]");
  check({.zeta = q}, "attention: axis 3 of zeta has length 4 instead of 6");
  check({.zeta = TensorView::dense(nullptr, DType::F32, {2, 2, 1, 6})}, "attention: zeta has no data");
}

}  // namespace attention_test
