// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The CPU backend: how far decodes are from the oracle, and from the value of one key. test_plain.cpp compares its
/// bits.
#include "reference/decode/decode.hpp"
#include "reference/oracle/attention.hpp"
#include "tests/support/tensor_workload.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace tree_attn::test {

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

TEST_CASE("cpu backend: the only key of a sequence gives its value within an ulp") {
  const auto workload = normal_workload(7500, {.batch = 2, .n_keys = 70}, std::vector<std::int64_t>{1, 70});
  Forest<float> states = decode_shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
  const DecodeOutput output = finish_rows(states.fold(), 8, 16);
  for (std::int64_t h = 0; h < 4; ++h) {
    const std::vector<double> v = row_of(workload->v(), 0, h / 2, 0);
    for (std::size_t j = 0; j < 16; ++j)
      CHECK(std::abs(output.out[static_cast<std::size_t>(h) * 16 + j] - v[j]) <= 0x1p-23 * std::abs(v[j]));
  }
}

}  // namespace tree_attn::test
