// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The sum of c and sixteen products as tensor cores make it, in integers, after the published models of Khattak and
/// Mikaitis. A second one from another source: gpu/emulator/tensor_sums.hpp.
#pragma once

#include <cstdint>

namespace tree_attn::soft_gpu {

/// An operand of 16 bits: (-1)^is_negative significand 2^(exponent - fraction bits of its type).
struct Number {
  bool is_negative, is_nan, is_infinite;
  int exponent;
  std::uint32_t significand;  ///< with the leading bit that is not stored
};
/// @param n_fraction 10 of F16, 7 of BF16
Number decoded(std::uint16_t bits, int n_fraction);

/// The bits of c + a[0] b[0] + .. + a[15] b[15] on a device of this major compute capability.
std::uint32_t sum_of_products(const Number (&a)[16], const Number (&b)[16], std::uint32_t c, int n_fraction, int major);

}  // namespace tree_attn::soft_gpu
