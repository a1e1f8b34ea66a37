// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Products of a warpgroup against those of warps, and those of warps against the models, in bits: of random
/// elements, and of all patterns of bits (section 6.3).
#include "reference/data/fnv1a.hpp"
#include "tests/gpu/engine/product_kernels.hpp"
#include "tests/support/device_params.hpp"
#include "tests/support/sweep.hpp"
#if !defined(TREE_ATTN_FOR_CUDA)
#include "gpu/emulator/settings.hpp"
#endif

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

namespace tree_attn::test::products_test {
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

/// The digest of the products of n random cases, each of 128 tiles of 16 x 8 x 16 in chains of four; all NaN count alike.
std::uint64_t digest_of(DType dtype, int n) {
  std::mt19937 random(70);
  std::uint64_t digest = kFnvStart;
  for (int i = 0; i < n; ++i) {
    constexpr std::array kRanges{1, 12, 40, 0};
    std::vector<float> c = products_of_warps(random_case(dtype, 64, i % 8 >= 4, kRanges[i % 4], random));
    for (float& x : c) x = std::isnan(x) ? std::numeric_limits<float>::quiet_NaN() : x;
    digest = fnv1a(std::as_bytes(std::span(c)), digest);
  }
  return digest;
}

}  // namespace

TEST_CASE("products: a warpgroup's have the bits of warps'") {
  if (device::device().major != 9) return;  // other devices have no such products
  enum Side { kKeys, kTransposed, kRegisters };
  const int n_rounds = device::kIsHostMemory || is_in_software() ? 1 : 200;  // on a card 43 million sums
  std::mt19937 random(69);
  for (const DType dtype : {DType::BF16, DType::F16}) {
    for (const int n_columns : {16, 32, 64, 128}) {
      for (const Side side : {kKeys, kTransposed, kRegisters}) {
        if (side == kRegisters ? n_columns < 64 : n_columns > 64) continue;
        const bool is_transposed = side == kTransposed;
        for (int i = 0; i < 4 * n_rounds; ++i) {
          const int range = std::array{1, 12, 40, 0}[static_cast<std::size_t>(i % 4)];
          ProductCase one = random_case(dtype, n_columns, is_transposed, range, random);
          one.is_in_registers = side == kRegisters;
          const std::vector<float> by_warps = products_of_warps(one), by_group = products_of_warpgroup(one);
          int n_different = 0;
          for (std::size_t at = 0; at < by_warps.size(); ++at)
            n_different += std::bit_cast<std::uint32_t>(by_warps[at]) != std::bit_cast<std::uint32_t>(by_group[at]);
          CAPTURE(n_columns);
          CAPTURE(is_transposed);
          CAPTURE(one.is_in_registers);
          CAPTURE(range);
          CHECK(n_different == 0);
          CHECK(by_warps != one.c);
        }
      }
    }
  }
}

/// A million tiles of both types, or 10240 in the fast set and on a GPU in software. On a card this says whether its tensor
/// cores add by the model.
TEST_CASE("products: those of warps have the digests of the models of compute capability 8, and of 9 and later") {
  struct Known {
    DType dtype;
    std::array<std::uint64_t, 2> of_8, of_9;  ///< of few cases, and of all
  };
  for (const auto& [dtype, of_8, of_9] :
       {Known{DType::F16, {0xfe192657ad3b6367, 0xcb0d9b4241eb3a3c}, {0x64d1d0e976c00e35, 0x45bee02f2a5eb96a}},
        Known{DType::BF16, {0x8680a981e647fcd2, 0xbb215ec4fa9e0a08}, {0x4917fd3081748444, 0x62b312c25b813535}}}) {
    CAPTURE(name_of(dtype));
    const std::size_t all = takes_all_cases() && !is_in_software() ? 1 : 0;
    const int n = all == 1 ? 4000 : 40;
#if !defined(TREE_ATTN_FOR_CUDA)
    for (const int major : {8, 9}) {
      const emulated::SettingsScope scope({.major = major});
      CHECK(digest_of(dtype, n) == (major == 8 ? of_8 : of_9)[all]);
    }
#else
    CHECK(digest_of(dtype, n) == (device::device().major == 8 ? of_8 : of_9)[all]);
#endif
  }
}

}  // namespace tree_attn::test::products_test
