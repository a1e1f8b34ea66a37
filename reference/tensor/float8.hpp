// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The bits of a float, and the numbers of FP8 E4M3 among them.
#pragma once

#include "reference/state/host_device.hpp"

#include <cstdint>
#include <cstring>

namespace tree_attn {

/// The bits of a float, and the float with given bits.
TREE_ATTN_HOST_DEVICE inline std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
TREE_ATTN_HOST_DEVICE inline float float_of(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

/// FP8 E4M3 of OCP and of torch.float8_e4m3fn: 1 sign, 4 exponent bits with a bias of 7, 3 mantissa bits. Every element is a
/// BF16 too. There is no Inf, and one NaN of each sign, 0x7F and 0xFF; numbers go from 2^-9 to 448.
struct Float8 {
  std::uint8_t bits;

  /// The element, exactly. Its bits are shifted to their position in a float, and one exact product corrects the bias.
  TREE_ATTN_HOST_DEVICE float widen() const {
    const std::uint32_t size = bits & 0x7Fu, sign = std::uint32_t{bits & 0x80u} << 24;
    return float_of(sign | (size == 0x7F ? 0x7FC00000u : bits_of(float_of(size << 20) * 0x1p120f)));
  }
  /// The nearest element, ties to even. Saturates: a finite x beyond 448 becomes 448, where torch has NaN from 464 on. Inf
  /// and NaN become NaN, where a conversion of a GPU with satfinite makes 448 of Inf: nothing turns into a number by
  /// accident. The sign stays.
  TREE_ATTN_HOST_DEVICE static Float8 narrow(float x) {
    const std::uint32_t all = bits_of(x), sign = all >> 24 & 0x80, size = all & 0x7FFFFFFF;
    // Change the bias and add half of the last place, or just below half if the last place is even.
    const std::uint32_t normal = (size - (120u << 23) + 0x7FFFF + (size >> 20 & 1)) >> 20;
    // Below 2^-6 elements are multiples of 2^-9, as floats in [2^14, 2^15) are, so the addition rounds.
    const std::uint32_t subnormal = bits_of(float_of(size) + 0x1p14f) - bits_of(0x1p14f);
    std::uint32_t rounded = size < 0x3C800000 ? subnormal : normal;
    rounded = rounded > 0x7E ? 0x7E : rounded;      // 448
    rounded = size >= 0x7F800000 ? 0x7F : rounded;  // NaN
    return {static_cast<std::uint8_t>(sign | rounded)};
  }
};

}  // namespace tree_attn
