// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The two models of sums inside tensor cores, for one tile: gpu/emulator/tensor_sums.hpp and tensor_sums.hpp here.
#pragma once

#include "gpu/emulator/tensor_sums.hpp"
#include "tests/gpu/soft_gpu/tensor_sums.hpp"

#include <array>
#include <bit>
#include <cstdint>
#include <type_traits>

namespace tree_attn::test {

/// Operands of an instruction m16n8k16 as bits, b by columns; its 128 sums as bits.
template <class T>
struct Tile {
  std::uint16_t a[16][16], b[8][16];
  std::uint32_t c[16][8];
  using Sums = std::array<std::array<std::uint32_t, 8>, 16>;

  Sums by_emulator(int major) const {
    emulated::Factors<16> left;
    emulated::Factors<8> right;
    float sums[16][8];
    for (int k = 0; k < 16; ++k) {
      for (int row = 0; row < 16; ++row) left.value[row][k] = widen(T{a[row][k]});
      for (int column = 0; column < 8; ++column) right.value[k][column] = widen(T{b[column][k]});
    }
    left.find_exponents(emulated::kSmallestExponent<T>), right.find_exponents(emulated::kSmallestExponent<T>);
    for (int row = 0; row < 16; ++row) {
      for (int column = 0; column < 8; ++column) sums[row][column] = std::bit_cast<float>(c[row][column]);
    }
    emulated::add_products(sums, left, right, emulated::tensor_cores_of(major));
    Sums found;
    for (std::size_t row = 0; row < 16; ++row) {
      for (std::size_t column = 0; column < 8; ++column)
        found[row][column] = std::bit_cast<std::uint32_t>(sums[row][column]);
    }
    return found;
  }
  Sums by_soft_gpu(int major) const {
    constexpr int kFraction = std::is_same_v<T, Half> ? 10 : 7;
    soft_gpu::Number left[16][16], right[8][16];
    for (int k = 0; k < 16; ++k) {
      for (int row = 0; row < 16; ++row) left[row][k] = soft_gpu::decoded(a[row][k], kFraction);
      for (int column = 0; column < 8; ++column) right[column][k] = soft_gpu::decoded(b[column][k], kFraction);
    }
    Sums found;
    for (std::size_t row = 0; row < 16; ++row) {
      for (std::size_t column = 0; column < 8; ++column)
        found[row][column] = soft_gpu::sum_of_products(left[row], right[column], c[row][column], kFraction, major);
    }
    return found;
  }
};

}  // namespace tree_attn::test
