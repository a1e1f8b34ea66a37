// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What is finite by the formula is finite in every algorithm, though a sum on the way is beyond F32 (section 5).
#include "tree_attn/tests/support/compare.hpp"
#include "tree_attn/tests/support/decoding.hpp"

#include <functional>
#include <limits>

namespace tree_attn::test::decoders_overflow_test {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();
const Axes kAxes{.batch = 3, .head_dim = 6, .value_dim = 5, .n_queries = 2};

/// q, k and v of standard normal numbers, before they are made large.
struct Draft {
  Tensor q, k, v;
};
Draft draft(std::int64_t n_keys) {
  Axes axes = kAxes;
  axes.n_keys = n_keys;
  std::mt19937 random(1300);
  return {normal_tensor(random, axes.q()), normal_tensor(random, axes.k()), normal_tensor(random, axes.v())};
}

/// Overwrites the values of batch entry i; `value` is that of (position, component).
template <class Value>
void set_values(Tensor& v, std::int64_t i, const Value& value) {
  for (std::int64_t h = 0; h < v.shape[1]; ++h) {
    for (std::int64_t a = 0; a < v.shape[2]; ++a) {
      for (std::int64_t j = 0; j < v.shape[3]; ++j) v.set(i, h, a, j, value(a, j));
    }
  }
}

/// Multiplies all numbers.
void enlarge(Tensor& tensor, float factor) {
  std::vector<float> elements(tensor.bytes.size() / sizeof(float));
  load(tensor.bytes.data(), DType::F32, std::ssize(elements), elements.data());
  for (float& x : elements) x *= factor;
  store(elements.data(), DType::F32, std::ssize(elements), tensor.bytes.data());
}

/// Layouts whose ranks hold one key, several, or none.
std::vector<Layout> layouts(int p, std::int64_t n_keys) {
  std::vector<Layout> layouts{{mixed_grouping(p), even_ranges(n_keys, p, 1)}};
  if (p == 3) layouts.push_back({Topology::pretend(3, 1), ranges_of_lengths(std::vector<std::int64_t>{0, n_keys, 0})});
  return layouts;
}

bool all_finite(std::span<const float> numbers) {
  return std::all_of(numbers.begin(), numbers.end(), [](float x) { return std::isfinite(x); });
}

/// Checks that all is finite, within the bound and of the same bits everywhere.
void check_finite(TensorWorkload& workload) {
  DecodeOutput canonical;
  for (RankGroup* rank_group : rank_groups({1, 2, 3, 5, 8})) {
    std::optional<Verifier> verify;
    if (rank_group->has_oracle()) verify.emplace(workload, workload.scale, rank_group->size(), cpu_backend());
    for (const Layout& layout : layouts(rank_group->size(), workload.n_keys())) {
      for (const Algorithm& algorithm : algorithms()) {
        INFO(algorithm.name << ", " << layout.text());
        const std::vector<RankResult> results = decode_any(*rank_group, algorithm, workload, layout);
        const DecodeOutput& output = results[0].output;
        CHECK(all_finite(output.out));
        CHECK(all_finite(output.lse));
        if (verify) CHECK((*verify)(algorithm, output).passed);
        for (const RankResult& rank : results) CHECK(same_bits(rank.output, output));
        if (algorithm.keeps_bits && canonical.out.empty()) canonical = output;
        if (algorithm.keeps_bits) CHECK(same_bits(output, canonical));
      }
    }
  }
}

}  // namespace

/// @tested{alg_3, Alg. 3}
TEST_CASE("overflow: values whose sum is beyond F32 have their average") {
  struct Case {
    const char* name;
    std::int64_t n_keys;
    std::function<float(std::int64_t a, std::int64_t n_keys)> value;
  };
  const Case cases[] = {
      {"3e38, 2 keys", 2, [](std::int64_t, std::int64_t) { return 3e38f; }},
      {"2e38, 4 keys", 4, [](std::int64_t, std::int64_t) { return 2e38f; }},
      {"1e36, 1000 keys", 1000, [](std::int64_t, std::int64_t) { return 1e36f; }},
      {"3e38, then -3e38", 90, [](std::int64_t a, std::int64_t n) { return a < n / 2 ? 3e38f : -3e38f; }},
      {"the largest number", 77, [](std::int64_t, std::int64_t) { return kLargest; }},
      {"the smallest number", 64, [](std::int64_t, std::int64_t) { return -kLargest; }},
  };
  for (const Case& c : cases) {
    CAPTURE(c.name);
    Draft d = draft(c.n_keys);
    for (std::int64_t i = 0; i < kAxes.batch; ++i) {
      set_values(d.v, i, [&](std::int64_t a, std::int64_t) { return c.value(a, c.n_keys); });
    }
    check_finite(*workload_of(d.q, d.k, d.v));
  }
}

/// @tested{eq_7, eq. (7)}
TEST_CASE("overflow: products q.k beyond F32 whose scores are not") {
  for (const double scale : {1e-38, -3e-38, 1e-40}) {
    CAPTURE(scale);
    Draft d = draft(45);
    enlarge(d.q, scale == 1e-40 ? 1e20f : 1e19f), enlarge(d.k, scale == 1e-40 ? 1e20f : 1e19f);
    check_finite(*workload_of(d.q, d.k, d.v, {}, scale));
  }
}

TEST_CASE("overflow: one component of one batch entry, and all others keep the bits that they have without it") {
  constexpr std::int64_t kKeys = 90;
  const Draft d = draft(kKeys);
  const auto workload_with = [&](float number) {
    Tensor v = d.v;
    for (std::int64_t h = 0; h < kAxes.kv_heads; ++h) {
      for (std::int64_t a = 0; a < kKeys; ++a) v.set(1, h, a, 2, number);
      v.set(2, h, 0, 0, kLargest), v.set(2, h, 0, 1, -0.0f);  // one key in all
    }
    return workload_of(d.q, d.k, v, std::vector<std::int64_t>{kKeys, kKeys, 1});
  };
  const auto large = workload_with(3e38f), clean = workload_with(0.5f);
  for (RankGroup* rank_group : rank_groups({1, 3, 8})) {
    const int p = rank_group->size();
    const Layout layout{mixed_grouping(p), even_ranges(kKeys, p, 1)};
    for (const Algorithm& algorithm : algorithms()) {
      INFO(algorithm.name << ", " << layout.text());
      const DecodeOutput with = decode_any(*rank_group, algorithm, *large, layout)[0].output,
                         without = decode(*rank_group, algorithm, *clean, layout)[0].output;
      CHECK(same_bits(with.lse, without.lse));
      std::size_t n_large = 0;
      bool same = true;
      for (std::size_t i = 0; i < with.out.size(); ++i) {
        const bool is_large = i / (with.out.size() / 3) == 1 && i % 5 == 2;
        if (is_large)
          n_large += with.out[i] > 2.9e38f;
        else
          same = same && same_bits(std::span(&with.out[i], 1), std::span(&without.out[i], 1));
      }
      CHECK(same);
      CHECK(n_large == 8);
    }
  }
}

}  // namespace tree_attn::test::decoders_overflow_test
