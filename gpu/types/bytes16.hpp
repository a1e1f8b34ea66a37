// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief 16 bytes of stored elements, what one thread moves at once, on either platform.
#pragma once

#include "reference/tensor/dtype.hpp"

#include <cstdint>
#include <cstring>

namespace tree_attn {

/// Sixteen bytes: the most that one thread moves at once.
struct alignas(16) Bytes16 {
  std::uint32_t word[4];
};

/// Two stored elements in one register of a tensor-core operand, `low` in the lower half.
template <class T>
TREE_ATTN_HOST_DEVICE inline std::uint32_t pack(T low, T high) {
  return std::uint32_t{low.bits} | std::uint32_t{high.bits} << 16;
}

/// Four floats as 16 bytes.
TREE_ATTN_HOST_DEVICE inline Bytes16 bytes16_of(const float (&x)[4]) {
  Bytes16 bytes;
  std::memcpy(&bytes, x, sizeof bytes);
  return bytes;
}

/// Elements of a type in 16 bytes.
template <class T>
inline constexpr int kPer16 = 16 / static_cast<int>(sizeof(T));

/// The elements in 16 bytes, as floats.
/// @param[out] out [kPer16<T>]
template <class T>
TREE_ATTN_HOST_DEVICE inline void widen(const Bytes16& from, float (&out)[kPer16<T>]) {
  T elements[kPer16<T>];
  std::memcpy(elements, &from, sizeof elements);
  TREE_ATTN_UNROLL
  for (int i = 0; i < kPer16<T>; ++i) out[i] = widen(elements[i]);
}

/// Widens BF16 word by word: one instruction per element.
template <>
TREE_ATTN_HOST_DEVICE inline void widen<BFloat16>(const Bytes16& from, float (&out)[kPer16<BFloat16>]) {
  TREE_ATTN_UNROLL
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = float_of(from.word[i] << 16);
    out[2 * i + 1] = float_of(from.word[i] & 0xFFFF0000u);
  }
}

}  // namespace tree_attn
