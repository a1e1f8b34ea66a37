// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Weights as three parts of 16 bits, whose sum they are (eq. (7)).
#include "tests/gpu/parts/part_kernels.hpp"
#include "tests/support/device_params.hpp"

#include <cmath>
#include <random>

namespace tree_attn::test {
namespace {

/// The sum of the parts of weight i, in units 1, or for F16 2^-15, 2^-27, 2^-39.
template <class T>
double sum_of_parts(const std::vector<std::uint32_t>& parts, std::size_t i) {
  double sum = 0;
  for (std::size_t part = 0; part < 3; ++part) {
    const auto bits = static_cast<std::uint16_t>(parts[i / 2 * 3 + part] >> (i % 2 == 0 ? 0 : 16));
    const double unit = std::is_same_v<T, Half> ? std::ldexp(1.0, -15 - 12 * static_cast<int>(part)) : 1.0;
    sum += unit * widen(T{bits});
  }
  return sum;
}

}  // namespace

/// @tested{eq_7, eq. (7)}
TEST_CASE("split weights: three parts of BF16 are the weight, of F16 up to 2^-64, and all of it from 2^-40 on") {
  std::mt19937 random(8700);
  std::uniform_real_distribution<float> mantissa(0.5f, 1.0f);
  std::vector<float> weights{1, 0, -0.0f, 0x1.fffffep-1f, 0x1.000002p-1f, 0x1.555556p-1f};
  for (int exponent = 0; exponent <= 100; ++exponent) {
    for (int i = 0; i < 20; ++i) weights.push_back(std::ldexp(mantissa(random), -exponent));
  }
  const std::vector<std::uint32_t> bf16 = device::split_weights_on_device(true, weights),
                                   f16 = device::split_weights_on_device(false, weights);
  bool exact = true, close = true;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double weight = weights[i], lost = std::abs(sum_of_parts<Half>(f16, i) - weight);
    exact = exact && sum_of_parts<BFloat16>(bf16, i) == weight;
    close = close && lost <= (weight >= 0x1p-40 ? 0.0 : 0x1p-64);
  }
  CHECK(exact);
  CHECK(close);
}

}  // namespace tree_attn::test
