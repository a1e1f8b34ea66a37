// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Keys and values of F8_E4M3 with scales that are powers of two, and the same numbers in BF16.
#pragma once

#include "tests/support/tensor_workload.hpp"

#include <cmath>
#include <memory>
#include <random>
#include <vector>

namespace tree_attn::test {

/// A workload twice: in F8_E4M3 with scales, and in BF16, where every scaled element is one. The queries are BF16.
struct Float8Case {
  KvScales scales;  ///< of the first
  std::unique_ptr<TensorWorkload> eight, sixteen;
};

/// Standard normal elements. @param of_keys, of_values exponents of the scales [b, n_kv]
inline Float8Case float8_case(unsigned seed, const Axes& axes, const std::vector<int>& of_keys,
                              const std::vector<int>& of_values, std::optional<std::vector<std::int64_t>> lengths = {}) {
  std::mt19937 random(seed);
  const Tensor q = normal_tensor(random, axes.q(), DType::BF16), k = normal_tensor(random, axes.k(), DType::F8_E4M3),
               v = normal_tensor(random, axes.v(), DType::F8_E4M3);
  const auto wide = [](const Tensor& narrow, const std::vector<int>& exponents) {
    std::vector<float> x(narrow.bytes.size());
    load(narrow.bytes.data(), narrow.dtype, std::ssize(x), x.data());
    const std::size_t of_head = x.size() / exponents.size();
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::ldexp(x[i], exponents[i / of_head]);
    return Tensor(x, narrow.shape, DType::BF16);
  };
  Float8Case c{{}, workload_of(q, k, v, lengths), workload_of(q, wide(k, of_keys), wide(v, of_values), lengths)};
  for (const int n : of_keys) c.scales.k.push_back(std::ldexp(1.0f, n));
  for (const int n : of_values) c.scales.v.push_back(std::ldexp(1.0f, n));
  return c;
}

}  // namespace tree_attn::test
