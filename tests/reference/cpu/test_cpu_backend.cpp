// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The CPU backend: decodes are within the error bound of the oracle, and cuts between leaves change no bit.
#include "tree_attn/reference/decode/decode.hpp"
#include "tree_attn/reference/oracle/error_bound.hpp"
#include "tree_attn/tests/support/compare.hpp"
#include "tree_attn/tests/support/tensor_workload.hpp"
#include "tree_attn/tests/support/tensors.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace tree_attn::test {
namespace {

/// Decodes the shards [cuts[i], cuts[i + 1]) one after the other and joins their forests.
DecodeOutput decode_cut(TensorWorkload& workload, const std::vector<std::int64_t>& cuts) {
  const std::int64_t n_rows = workload.shape().n_rows(), d_v = workload.shape().value_dim;
  Forest<float> forest(n_rows, d_v);
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    const Shard shard = workload.shard({cuts[i], cuts[i + 1]});
    const Forest<float> part = decode_shard(workload.query(0), shard, workload.lengths(), workload.scale);
    forest.append(part.subtrees(), part.states().data());
  }
  return finish_rows(forest.fold(), n_rows, d_v);
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) { return bits_of(x) == bits_of(y); });
}
bool same_bits(const DecodeOutput& a, const DecodeOutput& b) { return same_bits(a.out, b.out) && same_bits(a.lse, b.lse); }

}  // namespace

/// @tested{eq_7, eq. (7)}
TEST_CASE("cpu backend: outputs are within the error bound, and have the same bits for every cut between leaves") {
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    for (const std::int64_t n_queries : {1, 3}) {
      INFO(name_of(dtype) << ", " << n_queries << " queries");
      const std::int64_t N = 1500;
      const auto workload = normal_workload(7400,
                                            {.batch = 5,
                                             .heads = 4,
                                             .kv_heads = 2,
                                             .head_dim = 40,
                                             .value_dim = 72,
                                             .n_queries = n_queries,
                                             .n_keys = N,
                                             .dtype = dtype},
                                            std::vector<std::int64_t>{N, 0, 1, 64, 777});
      const DecodeOutput whole = decode_cut(*workload, {0, N});

      // The oracle, and a bound that has room for nothing but roundings.
      const AttentionOptions options{.scale = workload->scale, .lengths = workload->lengths()};
      const AttentionResult exact = attention(workload->query(0), workload->k(), workload->v(), options);
      const ErrorBound bound = error_bound(workload->query(0), workload->k(), workload->v(), options, tree_decode_model(N));
      const Comparison out = compare(whole.out, exact.out, bound.out);
      CHECK_MESSAGE(out.ok, out.message);
      const Comparison lse = compare(whole.lse, exact.lse, bound.lse, NonFinite::Match);  // -inf without keys
      CHECK_MESSAGE(lse.ok, lse.message);

      for (const std::vector<std::int64_t>& cuts :
           {std::vector<std::int64_t>{0, 64, N}, {0, 192, 192, 256, 1472, N}, {0, 1024, 1088, N}}) {
        CHECK(same_bits(decode_cut(*workload, cuts), whole));
      }
    }
  }
}

TEST_CASE("cpu backend: 4096 Gaussian keys err by less than 0.4 u sum w |v|") {
  // Largest errors of five draws, in u sum_a w_a |v_a|.
  constexpr std::int64_t kHeads = 4, kKeys = 4096, kDim = 128;
  const std::vector<std::int64_t> lengths{kKeys};
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    double largest = 0;
    for (unsigned seed = 1; seed <= 5; ++seed) {
      std::mt19937 random(seed);
      const Shape cache{1, kHeads, kKeys, kDim};
      const Tensor q = normal_tensor(random, {1, kHeads, 1, kDim}, dtype), k = normal_tensor(random, cache, dtype);
      std::vector<float> elements = normal_elements(random, n_elements(cache));
      const Tensor v(elements, cache, dtype);
      for (float& x : elements) x = std::abs(x);
      const Tensor v_sizes(elements, cache, dtype);

      const double scale = 1 / std::sqrt(static_cast<double>(kDim));
      Forest<float> states = decode_shard(q, {k, v, 0}, lengths, scale);
      const DecodeOutput z = finish_rows(states.fold(), kHeads, kDim);
      const AttentionResult exact = attention(q, k, v, {.scale = scale}), unit = attention(q, k, v_sizes, {.scale = scale});
      for (std::size_t i = 0; i < z.out.size(); ++i) {
        REQUIRE(std::isfinite(z.out[i]));
        largest = std::max(largest, std::abs(static_cast<double>(z.out[i]) - exact.out[i]) / unit.out[i] * 0x1p24);
      }
    }
    INFO(name_of(dtype));
    MESSAGE(name_of(dtype) << ": " << largest << " u sum w |v|");
    CHECK(largest > 0);
    CHECK(largest < 0.4);
  }
}

TEST_CASE("cpu backend: the only key of a sequence gives its value within an ulp, and progress is called for every chunk") {
  const auto workload = normal_workload(7500, {.batch = 2, .n_keys = 3000}, std::vector<std::int64_t>{1, 3000});
  int n_calls = 0;
  const Forest<float> states =
      decode_shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale, [&n_calls] { ++n_calls; });
  CHECK(n_calls >= 2 * 2 * 3);  // entries, key/value heads, chunks of 1024 keys: a thread has at least eight
  CHECK(std::ssize(states.subtrees()) == n_subtrees(0, 3000));
  const DecodeOutput output = decode_cut(*workload, {0, 64, 3000});
  for (std::int64_t h = 0; h < 4; ++h) {
    const std::vector<double> v = row_of(workload->v(), 0, h / 2, 0);
    for (std::size_t j = 0; j < 16; ++j)
      CHECK(std::abs(output.out[static_cast<std::size_t>(h) * 16 + j] - v[j]) <= 0x1p-23 * std::abs(v[j]));
  }
}

}  // namespace tree_attn::test
