// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The element types of stored tensors: a table of what is known of each, and one traits struct per type with its
/// conversions.
///
/// To add a type: add an enumerator of DType, a row of the table, a case in try_dtype(), and an element type with its
/// DTypeTraits. The code does not compile until they exist, and lanes::load_part() widens the type. Kernels also need the
/// type in the list in gpu/CMakeLists.txt. A type multiplied on tensor cores needs the product (mma_16x8x16), its emulation,
/// and a way to split the weights (split_weight).
#pragma once

#include "reference/tensor/float8.hpp"

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace tree_attn {

/// The storage types. Arithmetic is always in F32 or better.
enum class DType { F64, F32, F16, BF16, F8_E4M3 };

/// IEEE binary16: 1 sign, 5 exponent, 10 mantissa bits.
struct Half {
  std::uint16_t bits;
};

/// bfloat16: the upper half of a float.
struct BFloat16 {
  std::uint16_t bits;
};

/// The cores that multiply elements of a type in a kernel.
enum class KernelCores {
  None,         ///< kernels do not accept the type
  Scalar,       ///< scalar cores: fused multiply-add, after widening to F32
  TensorCores,  ///< tensor cores, 16-bit operands and sums in F32
};

/// Properties of a type.
struct DTypeFacts {
  DType dtype;
  std::string_view name;  ///< as in safetensors
  std::size_t bytes;      ///< of one element
  double unit_roundoff;   ///< u: rounding changes x by at most u |x| where x is normal
  double largest;         ///< largest finite element
  KernelCores cores;      ///< multiplies it in a kernel
};
/// All types, in the order of their enumerators.
inline constexpr std::array kDTypeFacts{DTypeFacts{DType::F64, "F64", 8, 0x1p-53, 0x1.fffffffffffffp1023, KernelCores::None},
                                        DTypeFacts{DType::F32, "F32", 4, 0x1p-24, 0x1.fffffep127, KernelCores::Scalar},
                                        DTypeFacts{DType::F16, "F16", 2, 0x1p-11, 65504, KernelCores::TensorCores},
                                        DTypeFacts{DType::BF16, "BF16", 2, 0x1p-8, 0x1.fep127, KernelCores::TensorCores},
                                        DTypeFacts{DType::F8_E4M3, "F8_E4M3", 1, 0x1p-4, 448, KernelCores::TensorCores}};
inline constexpr auto kDTypes = [] {
  std::array<DType, kDTypeFacts.size()> dtypes{};
  for (std::size_t i = 0; i < dtypes.size(); ++i) dtypes[i] = kDTypeFacts[i].dtype;
  return dtypes;
}();
/// The row of a type. @throws std::invalid_argument if `dtype` is not an enumerator
constexpr const DTypeFacts& facts_of(DType dtype) {
  const auto row = static_cast<std::size_t>(dtype);
  if (row >= kDTypeFacts.size()) throw std::invalid_argument("facts_of: no such type");
  return kDTypeFacts[row];
}

/// The conversions of the element type T, defined for each DType below.
///
///     kDType          its enumerator
///     kCores          the cores of its row
///     Wide            float, or double for F64: represents every element exactly
///     widen(T)        the element as Wide, exactly; a signalling NaN may become a quiet one
///     narrow(float)   the nearest element, ties to even; beyond the largest Inf, of F8_E4M3 the largest; a NaN stays one,
///                     and on the host keeps its sign
template <class T>
struct DTypeTraits;

/// F64: double precision, for references.
template <>
struct DTypeTraits<double> {
  static constexpr DType kDType = DType::F64;
  static constexpr KernelCores kCores = facts_of(kDType).cores;
  using Wide = double;
  TREE_ATTN_HOST_DEVICE static constexpr double widen(double x) { return x; }
  TREE_ATTN_HOST_DEVICE static constexpr double narrow(float x) { return x; }
};

/// F32.
template <>
struct DTypeTraits<float> {
  static constexpr DType kDType = DType::F32;
  static constexpr KernelCores kCores = facts_of(kDType).cores;
  using Wide = float;
  TREE_ATTN_HOST_DEVICE static constexpr float widen(float x) { return x; }
  TREE_ATTN_HOST_DEVICE static constexpr float narrow(float x) { return x; }
};

/// F16.
template <>
struct DTypeTraits<Half> {
  static constexpr DType kDType = DType::F16;
  static constexpr KernelCores kCores = facts_of(kDType).cores;
  using Wide = float;

  /// On the host the result is computed from the bits, so that compilers vectorise a loop over elements. Exponent and
  /// mantissa are shifted to their position in a float, and one exact product corrects the bias, for subnormal elements too.
  TREE_ATTN_HOST_DEVICE static float widen(Half x) {
#if defined(__CUDA_ARCH__)
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
    return wide;
#else
    const float size = float_of(std::uint32_t{x.bits & 0x7FFFu} << 13) * 0x1p112f;
    std::uint32_t bits = bits_of(size);
    bits |= size >= 0x1p16f ? 0x7F800000u : 0u;     // Inf and NaN have the largest exponent
    bits |= bits > 0x7F800000u ? 0x00400000u : 0u;  // a NaN is quiet
    return float_of(bits | std::uint32_t{x.bits & 0x8000u} << 16);
#endif
  }
  TREE_ATTN_HOST_DEVICE static Half narrow(float x) {
#if defined(__CUDA_ARCH__)
    Half half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half.bits) : "f"(x));
    return half;
#else
    const std::uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000, size = bits & 0x7FFFFFFF;
    // Change the bias and add half of the last place, or just below half if the last place is even.
    const std::uint32_t normal = (size - (112u << 23) + 0xFFF + (size >> 13 & 1)) >> 13;
    // Below 2^-14 elements are multiples of 2^-24, as floats in [1/2, 1) are, so the addition rounds.
    const std::uint32_t subnormal = bits_of(float_of(size) + 0.5f) - bits_of(0.5f);
    std::uint32_t rounded = size < 0x38800000 ? subnormal : normal;
    rounded = size >= 0x47800000 ? 0x7C00 : rounded;  // 2^16 and more: Inf
    rounded = size > 0x7F800000 ? 0x7E00 : rounded;   // NaN
    return {static_cast<std::uint16_t>(sign | rounded)};
#endif
  }
};

/// BF16.
template <>
struct DTypeTraits<BFloat16> {
  static constexpr DType kDType = DType::BF16;
  static constexpr KernelCores kCores = facts_of(kDType).cores;
  using Wide = float;
  TREE_ATTN_HOST_DEVICE static float widen(BFloat16 x) { return float_of(std::uint32_t{x.bits} << 16); }
  /// A NaN keeps its sign on the host; on a device it becomes any NaN, as F16's does.
  TREE_ATTN_HOST_DEVICE static BFloat16 narrow(float x) {
#if defined(__CUDA_ARCH__)
    BFloat16 nearest;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(nearest.bits) : "f"(x));
    return nearest;
#else
    const std::uint32_t bits = bits_of(x);
    if (x != x) return {static_cast<std::uint16_t>((bits >> 16 & 0x8000) | 0x7FC0)};
    return {static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
#endif
  }
};

/// FP8 E4M3, for keys and values.
template <>
struct DTypeTraits<Float8> {
  static constexpr DType kDType = DType::F8_E4M3;
  static constexpr KernelCores kCores = facts_of(kDType).cores;
  using Wide = float;
  TREE_ATTN_HOST_DEVICE static float widen(Float8 x) { return x.widen(); }
  TREE_ATTN_HOST_DEVICE static Float8 narrow(float x) { return Float8::narrow(x); }
};

/// An element type whose traits are complete.
template <class T>
concept StoredType = requires(T element, float x) {
  { DTypeTraits<T>::kDType } -> std::convertible_to<DType>;
  { DTypeTraits<T>::kCores } -> std::convertible_to<KernelCores>;
  { DTypeTraits<T>::widen(element) } -> std::same_as<typename DTypeTraits<T>::Wide>;
  { DTypeTraits<T>::narrow(x) } -> std::same_as<T>;
};

/// The stored element as float (double for F64), exactly.
template <StoredType T>
TREE_ATTN_HOST_DEVICE constexpr typename DTypeTraits<T>::Wide widen(T x) {
  return DTypeTraits<T>::widen(x);
}
/// The nearest stored element, ties to even.
template <StoredType T>
TREE_ATTN_HOST_DEVICE constexpr T narrow(float x) {
  return DTypeTraits<T>::narrow(x);
}

/// If `dtype` is an enumerator, calls f with an element of its type, T{}, and returns true. Returns false otherwise.
///
/// This is the only switch over types. It has no default, so a missing enumerator is an error (-Werror=switch).
template <class F>
constexpr bool try_dtype(DType dtype, F&& f) {
  const auto call = [&f]<StoredType T>(T element) {
    f(element);
    return true;
  };
  switch (dtype) {
    case DType::F64: return call(double{});
    case DType::F32: return call(float{});
    case DType::F16: return call(Half{});
    case DType::BF16: return call(BFloat16{});
    case DType::F8_E4M3: return call(Float8{});
  }
  return false;
}

/// Calls f with an element of the type, T{}. @throws std::invalid_argument if `dtype` is not an enumerator
template <class F>
constexpr void with_dtype(DType dtype, F&& f) {
  if (!try_dtype(dtype, std::forward<F>(f))) throw std::invalid_argument("with_dtype: no such type");
}

/// Bytes of one stored element.
constexpr std::size_t bytes_of(DType dtype) { return facts_of(dtype).bytes; }
/// "F64", "F32", "F16", "BF16" or "F8_E4M3", as in safetensors.
constexpr std::string_view name_of(DType dtype) { return facts_of(dtype).name; }
/// Name in lower case, as in options and reports: "bf16".
inline std::string lower_name_of(DType dtype) {
  std::string name(name_of(dtype));
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return name;
}
/// Unit roundoff of the type: 2^-53, 2^-24, 2^-11, 2^-8, 2^-4.
constexpr double unit_roundoff(DType dtype) { return facts_of(dtype).unit_roundoff; }
/// Largest finite element.
constexpr double largest_of(DType dtype) { return facts_of(dtype).largest; }
/// Tests whether the CPU adds neighbours of a dot product in one lane: for BF16, and for F8_E4M3, which has the bits of
/// BF16.
constexpr bool sums_in_pairs(DType dtype) { return dtype == DType::BF16 || dtype == DType::F8_E4M3; }
/// The cores that multiply elements of the type in a kernel.
constexpr KernelCores kernel_cores_of(DType dtype) { return facts_of(dtype).cores; }

/// Each enumerator leads to the type that names it.
static_assert([] {
  bool all = true;
  for (const DType dtype : kDTypes)
    with_dtype(dtype, [&]<class T>(T) { all = all && DTypeTraits<T>::kDType == dtype && sizeof(T) == bytes_of(dtype); });
  return all;
}());

}  // namespace tree_attn
