// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Weights as three parts of 16 bits, and the products of a leaf on tensor cores (eq. (7)).
#include "tree_attn/tests/gpu/engine/part_kernels.hpp"
#include "tree_attn/tests/support/device_params.hpp"

#include <cmath>
#include <random>

namespace tree_attn::test {
namespace {

/// The sum of the parts of weight i: in units of 1, or for F16 of 2^-15, 2^-26 and 2^-26.
template <class T>
double sum_of_parts(const std::vector<std::uint16_t>& parts, std::size_t i) {
  constexpr bool kIsHalf = std::is_same_v<T, Half>;
  const double upper = widen(T{parts[3 * i]}), middle = widen(T{parts[3 * i + 1]}), lower = widen(T{parts[3 * i + 2]});
  return std::ldexp(upper, kIsHalf ? -15 : 0) + std::ldexp(middle + lower, kIsHalf ? -26 : 0);
}

/// Weights of all sizes: random ones, and the neighbours of powers of two and of midpoints between elements of 16 bits.
std::vector<float> weights_of_all_sizes() {
  std::mt19937 random(8700);
  std::uniform_real_distribution<float> mantissa(0.5f, 1.0f);
  std::vector<float> weights{1, 0};
  for (int exponent = 0; exponent <= 125; ++exponent) {
    for (int i = 0; i < 200; ++i) weights.push_back(std::ldexp(mantissa(random), -exponent));
    for (int i = 0; i < 1 << 11; i += 37) {
      const float at = std::ldexp(1.0f + std::ldexp(static_cast<float>(i), -11), -exponent - 1);
      for (const float x : {std::nextafter(at, 0.0f), at, std::nextafter(at, 1.0f)}) weights.push_back(x);
    }
  }
  return weights;
}

template <class T>
std::vector<std::uint16_t> bits_of_type(const std::vector<float>& elements) {
  std::vector<std::uint16_t> bits;
  for (const float x : elements) bits.push_back(narrow<T>(x).bits);
  return bits;
}

}  // namespace

/// @tested{eq_7, eq. (7)}
TEST_CASE("split weight: three parts of BF16 are the weight, of F16 up to 2^-51, and all of it from 2^-26 on") {
  const std::vector<float> weights = weights_of_all_sizes();
  const std::vector<std::uint16_t> bf16 = device::split_weights_on_device(true, weights),
                                   f16 = device::split_weights_on_device(false, weights);
  bool exact = true, close = true, finite = true;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double weight = weights[i], lost = std::abs(sum_of_parts<Half>(f16, i) - weight);
    // Below 2^-110 the lower parts of BF16 are subnormal.
    if (weight == 0 || weight >= 0x1p-110) exact = exact && sum_of_parts<BFloat16>(bf16, i) == weight;
    close = close && lost <= (weight >= 0x1p-26 ? 0.0 : 0x1p-51);
    for (std::size_t part = 0; part < 3; ++part) finite = finite && std::isfinite(widen(Half{f16[3 * i + part]}));
  }
  CHECK(exact);
  CHECK(close);
  CHECK(finite);
}

TEST_CASE("split weight: the largest F16 weights, all 2^23 of them in [1/2, 1]") {
  std::vector<float> weights;
  for (std::uint32_t i = 0; i <= 1u << 23; i += 61) weights.push_back(0.5f + std::ldexp(static_cast<float>(i), -24));
  weights.push_back(1), weights.push_back(std::nextafter(1.0f, 0.0f));
  const std::vector<std::uint16_t> parts = device::split_weights_on_device(false, weights);
  bool exact = true;
  for (std::size_t i = 0; i < weights.size(); ++i) exact = exact && sum_of_parts<Half>(parts, i) == double{weights[i]};
  CHECK(exact);
}

/// @tested{eq_7, eq. (7)}
TEST_CASE("tile products: scores, and sums of weighted values, for four queries and for eight") {
  constexpr int kDim = device::kTileDim, kKeys = device::kTileRows;
  for (const bool is_bf16 : {false, true}) {
    for (const int n_rows : {4, 8}) {
      std::mt19937 random(8710);
      const auto small = [&random](std::size_t n) {
        std::vector<float> elements(n);
        for (float& x : elements) x = static_cast<float>(static_cast<int>(random() % 15) - 7);
        return elements;
      };
      const auto rows = static_cast<std::size_t>(n_rows);
      const std::vector<float> q = small(rows * kDim), k = small(kKeys * kDim), v = small(kKeys * kDim);
      // Weights of 24 bits.
      std::vector<float> weights(rows * kKeys);
      for (float& w : weights) w = std::ldexp(static_cast<float>(random() % (1 << 24)), -24);
      const auto bits = [is_bf16](const std::vector<float>& x) {
        return is_bf16 ? bits_of_type<BFloat16>(x) : bits_of_type<Half>(x);
      };
      const device::TileProducts got = device::tile_products_on_device(is_bf16, n_rows, bits(q), bits(k), bits(v), weights);
      bool scores = true, sums = true;
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t a = 0; a < kKeys; ++a) {
          double s = 0;
          for (std::size_t c = 0; c < kDim; ++c) s += double{q[r * kDim + c]} * k[a * kDim + c];
          scores = scores && got.scores[r * kKeys + a] == s;
        }
        for (std::size_t c = 0; c < kDim; ++c) {
          double n = 0, size = 0;
          for (std::size_t a = 0; a < kKeys; ++a)
            n += double{weights[r * kKeys + a]} * v[a * kDim + c],
                size += weights[r * kKeys + a] * std::abs(v[a * kDim + c]);
          sums = sums && std::abs(got.n[r * kDim + c] - n) <= 64 * 0x1p-24 * size;
        }
      }
      CAPTURE(n_rows);
      CAPTURE(is_bf16);
      CHECK(scores);
      CHECK(sums);
    }
  }
}

}  // namespace tree_attn::test
