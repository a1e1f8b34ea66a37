// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Sixteen F32 lanes on every processor: arithmetic, loads that widen, and 2^x (the inner loops of eq. (7)).
///
/// The order of every addition is written here and in instructions.hpp, and no multiply-add is fused, so the bits of a
/// decode do not depend on the instruction set.
///
/// leaf_kernel.cpp, which includes this file, is compiled once per instruction set. Of a function that several builds emit
/// under one name the linker keeps one copy, which may be one that this processor cannot run. Therefore every function here
/// is inlined and none calls the standard library, and the vector types are those of GCC and Clang rather than templates of
/// Eigen or std::experimental::simd. The test reference/leaf_symbols checks the object files.
#pragma once

#include "reference/cpu/instructions.hpp"
#include "reference/tensor/dtype.hpp"

#include <cstddef>
#include <cstdint>

namespace tree_attn::lanes {

/// f(x), f(x, y), ..: part by part.
template <class F, class... X>
TREE_ATTN_INLINE Lanes map(const F& f, const X&... x) {
  Lanes result;
  each<kParts>([&]<int i>() TREE_ATTN_LAMBDA { result.part[i] = f(x.part[i]...); });
  return result;
}
TREE_ATTN_INLINE Lanes operator+(const Lanes& x, const Lanes& y) {
  return map([](Part a, Part b) TREE_ATTN_LAMBDA { return a + b; }, x, y);
}
TREE_ATTN_INLINE Lanes operator*(const Lanes& x, const Lanes& y) {
  return map([](Part a, Part b) TREE_ATTN_LAMBDA { return a * b; }, x, y);
}
TREE_ATTN_INLINE Lanes operator*(float x, const Lanes& y) {
  return map([x](Part a) TREE_ATTN_LAMBDA { return x * a; }, y);
}
TREE_ATTN_INLINE Lanes load(const float* p) {
  Lanes x;
  each<kParts>([&]<int i>() TREE_ATTN_LAMBDA { x.part[i] = load_vector<Part>(p + i * kPartLanes); });
  return x;
}
TREE_ATTN_INLINE void store(float* p, const Lanes& x) {
  each<kParts>([&]<int i>() TREE_ATTN_LAMBDA { __builtin_memcpy(p + i * kPartLanes, &x.part[i], sizeof(Part)); });
}

/// Elements that are loaded together. Rows are padded with zeros to a multiple of it.
inline constexpr int kPairElements = 2 * kLanes;
/// Their bytes in memory.
template <class T>
inline constexpr int kPairBytes = kPairElements* static_cast<int>(sizeof(T));

/// 32 neighbouring elements of a row. F64, F32 and F16: x has the first sixteen, y the others. BF16: x has the even ones, y
/// the odd ones; two of them share a word, and a shift and a mask separate them without shuffles. F8_E4M3: as BF16, whose
/// sums it then has.
struct Pair {
  Lanes x, y;
};

/// Lane of element i of a pair of type T: lane result % 16 of x if the result is less than 16, else of y.
template <class T>
constexpr int lane_of(int i) {
  return sums_in_pairs(DTypeTraits<T>::kDType) ? i / 2 + i % 2 * kLanes : i;
}

/// The F8_E4M3 in the lowest byte of each lane, as Float8::widen().
TREE_ATTN_INLINE Part widen_float8(PartBits bits) {
  const PartBits size = bits & 0x7F;
  const PartBits wide = (PartBits)((Part)(size << 20) * 0x1p120f) | ((size == 0x7F) & 0x7FC00000);
  return (Part)(wide | (bits & 0x80) << 24);
}

/// kPartLanes elements of type T, widened as DTypeTraits<T>::widen() does; F64 rounded.
template <class T>
TREE_ATTN_INLINE Part load_part(const std::byte* p) {
  if constexpr (DTypeTraits<T>::kDType == DType::F32) {
    return load_vector<Part>(p);
  } else if constexpr (DTypeTraits<T>::kDType == DType::F64) {
    Part x{};
    for (int i = 0; i < kPartLanes; ++i) x[i] = static_cast<float>(load_vector<double>(p + i * sizeof(double)));
    return x;
  } else {
    static_assert(DTypeTraits<T>::kDType == DType::F16);
    return widen_halves(p);
  }
}

/// A pair at any alignment.
template <class T>
TREE_ATTN_INLINE Pair load_pair(const std::byte* p) {
  Pair pair;
  each<kParts>([&]<int i>() TREE_ATTN_LAMBDA {
    if constexpr (DTypeTraits<T>::kDType == DType::BF16) {
      const PartBits bits = load_vector<PartBits>(p + i * sizeof(Part));  // in a word, an even element below an odd one
      pair.x.part[i] = (Part)(bits << 16), pair.y.part[i] = (Part)(bits & static_cast<std::int32_t>(0xFFFF0000));
    } else if constexpr (DTypeTraits<T>::kDType == DType::F8_E4M3) {
      using Words = std::uint16_t __attribute__((vector_size(2 * kPartLanes)));
      const PartBits bits = __builtin_convertvector(load_vector<Words>(p + i * sizeof(Words)), PartBits);
      pair.x.part[i] = widen_float8(bits), pair.y.part[i] = widen_float8(bits >> 8);
    } else {
      pair.x.part[i] = load_part<T>(p + i * kPartLanes * sizeof(T));
      pair.y.part[i] = load_part<T>(p + (kLanes + i * kPartLanes) * sizeof(T));
    }
  });
  return pair;
}
/// Copies the first n elements of a pair, then zeros; nothing past them is read.
template <class T>
TREE_ATTN_INLINE void copy_rest(const std::byte* p, std::int64_t n, std::byte (&to)[kPairBytes<T>]) {
  __builtin_memset(to, 0, sizeof to);
  __builtin_memcpy(to, p, static_cast<std::size_t>(n) * sizeof(T));
}
/// The first n elements of a pair, then zeros.
template <class T>
TREE_ATTN_INLINE Pair load_pair(const std::byte* p, std::int64_t n) {
  std::byte elements[kPairBytes<T>];
  copy_rest<T>(p, n, elements);
  return load_pair<T>(elements);
}

/// 2^f for -1 < f <= 0. 2^0 = 1 exactly; NaN stays NaN.
///
/// A minimax polynomial of degree 6 on [-1/2, 1/2] with a constant term of 1, which is within 2^-28.3 of 2^g before
/// rounding. With roundings the result is within 1.1 units in the last place of 2^f.
TREE_ATTN_INLINE Part exp2_fraction(Part f) {
  const PartBits low = f < -0.5f;
  const Part g = f + select(low, all(1), Part{});  // exact
  Part p = all(0x1.416b5ep-13f);
  p = p * g + 0x1.5f0830p-10f;
  p = p * g + 0x1.3b2de0p-7f;
  p = p * g + 0x1.c6af7cp-5f;
  p = p * g + 0x1.ebfbdcp-3f;
  p = p * g + 0x1.62e430p-1f;
  p = p * g + 1.0f;
  return p * select(low, all(0.5f), all(1));
}

/// 2^x for whole x <= 0; 0 below -126, and for -inf and NaN: pow2() of state.hpp.
TREE_ATTN_INLINE Part pow2(Part x) {
  const PartBits normal = x >= -126.0f;
  const Part biased = x + (0x1.8p23f + 127);  // exact: the exponent's bits are the lowest
  return (Part)(((PartBits)biased << 23) & normal);
}

}  // namespace tree_attn::lanes
