// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Sums inside tensor cores, bit by bit, after the published model MMA-Sim of Xie and others.
///
/// The manuals promise no order and no rounding of the sum of c and of products. By the model a group of products and c are
/// aligned to the largest exponent among them, cut off after a number of fraction bits, added exactly, and cut off to a
/// float. Nothing is rounded to nearest. Sources, their disagreements and what is taken: docs/III.2-emulator.md.
///
/// tests/gpu/soft_gpu/tensor_sums.hpp is a second one, in integers and from another source; both have the sums that others
/// published.
#pragma once

#include "reference/tensor/dtype.hpp"

#include <cstdint>
#include <type_traits>

namespace tree_attn::emulated {

/// Arithmetic of the sums of an architecture.
struct TensorCores {
  int n_products;       ///< that are added at once; more follow in groups, each to the result of the one before
  int fraction_bits;    ///< kept of a term, from the largest exponent of its group down
  int lowest_exponent;  ///< of a group: where all terms are below, they are aligned to this one
};
inline TensorCores tensor_cores_of(int major) {
  if (major < 9) return {8, 24, -132};
  return {16, 25, -133};
}

/// Exponent of the smallest normal element.
template <class T>
constexpr int kSmallestExponent = std::is_same_v<T, Half> ? -14 : -126;

/// Operand a [16, 16] or b [16, 8], widened, and its exponents.
template <int n>
struct Factors {
  float value[16][n];
  std::int16_t exponent[16][n];  ///< kNoTerm of 0, kNotFinite of Inf and NaN, of a subnormal element the smallest one

  static constexpr std::int16_t kNoTerm = -1000, kNotFinite = 4000;
  void find_exponents(int smallest);
};

/// c [16, 8] <- a b + c, as one instruction m16n8k16.
void add_products(float (&c)[16][8], const Factors<16>& a, const Factors<8>& b, const TensorCores& cores);

}  // namespace tree_attn::emulated
