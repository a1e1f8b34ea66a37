// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Stored numbers of 16 bits, and 16 bytes of stored numbers, on either platform.
///
/// No header of the CUDA toolkit is needed without a toolkit, and the bits are the same with one.
#pragma once

#include <cstdint>
#include <cstring>

#include "reference/state/state.hpp"

namespace tree_attn {

/// IEEE binary16: 1 sign, 5 exponent, 10 mantissa bits.
struct Half {
  std::uint16_t bits;
};

/// bfloat16: the upper half of a float.
struct BFloat16 {
  std::uint16_t bits;
};

/// What one thread moves at once.
struct alignas(16) Bytes16 {
  std::uint32_t word[4];
};

/// The bits of a float, and back.
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

/// The float that a stored number is, exactly.
TREE_ATTN_HOST_DEVICE inline float widen(float x) { return x; }
TREE_ATTN_HOST_DEVICE inline float widen(BFloat16 x) { return float_of(std::uint32_t{x.bits} << 16); }
TREE_ATTN_HOST_DEVICE inline float widen(Half x) {
#if defined(__CUDA_ARCH__)
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
#else
  _Float16 narrow;
  std::memcpy(&narrow, &x.bits, sizeof narrow);
  return static_cast<float>(narrow);
#endif
}

/// The nearest number of 16 bits, ties to even; NaN stays NaN.
template <class T>
TREE_ATTN_HOST_DEVICE T narrow(float x);
template <>
TREE_ATTN_HOST_DEVICE inline BFloat16 narrow<BFloat16>(float x) {
  const std::uint32_t bits = bits_of(x);
  if (x != x) return {0x7FFF};
  return {static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}
template <>
TREE_ATTN_HOST_DEVICE inline Half narrow<Half>(float x) {
  Half half;
#if defined(__CUDA_ARCH__)
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half.bits) : "f"(x));
#else
  const _Float16 rounded = static_cast<_Float16>(x);
  std::memcpy(&half.bits, &rounded, sizeof rounded);
#endif
  return half;
}

/// Two stored numbers in one register of a tensor-core operand, `low` in the lower half.
template <class T>
TREE_ATTN_HOST_DEVICE inline std::uint32_t pack(T low, T high) {
  return std::uint32_t{low.bits} | std::uint32_t{high.bits} << 16;
}

/// Numbers of a type in 16 bytes.
template <class T>
inline constexpr int kPer16 = 16 / static_cast<int>(sizeof(T));

/// The numbers in 16 bytes, as floats.
/// @param[out] out [kPer16<T>]
template <class T>
TREE_ATTN_HOST_DEVICE inline void widen(const Bytes16& from, float (&out)[kPer16<T>]) {
  T numbers[kPer16<T>];
  std::memcpy(numbers, &from, sizeof numbers);
  TREE_ATTN_UNROLL
  for (int i = 0; i < kPer16<T>; ++i) out[i] = widen(numbers[i]);
}

}  // namespace tree_attn
