// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Products of a warpgroup against those of warps, in bits: of random elements, and of all patterns of bits (section
/// 6.3).
#include "tests/gpu/engine/product_kernels.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <random>

namespace tree_attn::test::products_test {
namespace device = TREE_ATTN_PLATFORM;

namespace {

using device::ProductCase;

/// Elements with exponents within 2^-range of 1, or for a range of 0 any bits.
ProductCase random_case(DType dtype, int n_columns, bool is_transposed, int range, std::mt19937& random) {
  ProductCase made{dtype,
                   n_columns,
                   is_transposed,
                   std::vector<std::uint16_t>(64 * 64),
                   std::vector<std::uint16_t>(static_cast<std::size_t>(64 * n_columns)),
                   std::vector<float>(static_cast<std::size_t>(64 * n_columns))};
  const std::uint32_t mantissa = dtype == DType::F16 ? 10 : 7, bias = dtype == DType::F16 ? 15 : 127;
  const auto element = [&] {
    const auto bits = static_cast<std::uint32_t>(random());
    if (range == 0) return static_cast<std::uint16_t>(bits);
    const std::uint32_t drop = bits >> 16 & 0xFF, exponent = bias - std::min(bias, drop % static_cast<std::uint32_t>(range));
    return static_cast<std::uint16_t>((bits & 1) << 15 | exponent << mantissa | (bits >> 1 & ((1U << mantissa) - 1)));
  };
  for (std::uint16_t& x : made.a) x = element();
  for (std::uint16_t& x : made.b) x = element();
  for (float& x : made.c) x = std::ldexp(static_cast<float>(random() % 4096) - 2048, -static_cast<int>(random() % 24));
  return made;
}

}  // namespace

TEST_CASE("products: a warpgroup's have the bits of warps'") {
  if (device::device().major != 9) return;  // other devices have no such products
  std::mt19937 random(69);
  for (const DType dtype : {DType::BF16, DType::F16}) {
    for (const int n_columns : {16, 32, 64}) {
      for (const bool is_transposed : {false, true}) {
        for (const int range : {1, 12, 40, 0}) {
          const ProductCase one = random_case(dtype, n_columns, is_transposed, range, random);
          const std::vector<float> by_warps = products_of_warps(one), by_group = products_of_warpgroup(one);
          int n_different = 0;
          for (std::size_t i = 0; i < by_warps.size(); ++i)
            n_different += std::bit_cast<std::uint32_t>(by_warps[i]) != std::bit_cast<std::uint32_t>(by_group[i]);
          CAPTURE(n_columns);
          CAPTURE(is_transposed);
          CAPTURE(range);
          CHECK(n_different == 0);
          CHECK(by_warps != one.c);
        }
      }
    }
  }
}

}  // namespace tree_attn::test::products_test
