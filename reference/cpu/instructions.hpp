// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The registers of each instruction set, and the operations that are written once per set.
///
/// Sixteen lanes are one register of AVX-512, two of AVX2, four of SSE or NEON; everything else is written in terms of these
/// (lanes.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__F16C__)
#include <immintrin.h>
#endif

// Under sanitizers, loops inlined into one function are too large to compile: they are built once, and inlining is not
// forced.
#if defined(TREE_ATTN_ONE_INSTRUCTION_SET)
#define TREE_ATTN_INLINE inline
#define TREE_ATTN_LAMBDA
#else
#define TREE_ATTN_INLINE inline __attribute__((always_inline))
#define TREE_ATTN_LAMBDA __attribute__((always_inline))
#endif

namespace tree_attn::lanes {

/// Lanes that a row is spread over, on every processor.
inline constexpr int kLanes = 16;

/// Lanes of one register.
#if defined(__AVX512F__)
inline constexpr int kPartLanes = 16;
#elif defined(__AVX__)
inline constexpr int kPartLanes = 8;
#else
inline constexpr int kPartLanes = 4;
#endif
/// Registers that hold all lanes.
inline constexpr int kParts = kLanes / kPartLanes;

using Part = float __attribute__((vector_size(4 * kPartLanes)));             ///< one register
using PartBits = std::int32_t __attribute__((vector_size(4 * kPartLanes)));  ///< its bits, or a mask
using Quad = float __attribute__((vector_size(16)));                         ///< four lanes

/// f<0>(), f<1>(), .., f<kCount - 1>(): a loop whose counter is a constant, so that arrays indexed by it stay in registers.
template <int kCount, int kFirst = 0, class F>
TREE_ATTN_INLINE void each(const F& f) {
  if constexpr (kFirst < kCount) {
    f.template operator()<kFirst>();
    each<kCount, kFirst + 1>(f);
  }
}

/// A vector from memory, at any alignment.
template <class Vector>
TREE_ATTN_INLINE Vector load_vector(const void* p) {
  Vector x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
/// Broadcasts an element to all lanes of a part.
TREE_ATTN_INLINE Part all(float x) { return x - Part{}; }
TREE_ATTN_INLINE Part select(PartBits mask, Part x, Part y) { return mask ? x : y; }

/// Sixteen elements.
struct Lanes {
  Part part[kParts];
};

/// Keeps the compiler from moving reads of memory across this line, and x from being computed after it.
///
/// A core reads fastest in the order of addresses. Compilers interleave the loads of two rows to save registers; on a Zen 5
/// F32 rows were then read a tenth more slowly.
TREE_ATTN_INLINE void in_order([[maybe_unused]] Lanes& x) {
#if defined(__AVX512F__)
  asm volatile("" : "+v"(x.part[0])::"memory");
#elif defined(__SSE__)
  each<kParts>([&]<int i>() TREE_ATTN_LAMBDA {
    Part& part = x.part[i];
    asm volatile("" : "+x"(part)::"memory");
  });
#else
  asm volatile("" ::: "memory");
#endif
}

/// kPartLanes elements of F16 from memory, widened as DTypeTraits<Half>::widen() does.
TREE_ATTN_INLINE Part widen_halves(const std::byte* p) {
#if defined(__AVX512F__)
  return (Part)_mm512_maskz_cvtph_ps(0xFFFF, load_vector<__m256i>(p));
#elif defined(__F16C__)
  return (Part)_mm256_cvtph_ps(load_vector<__m128i>(p));
#else
  using Words = std::uint64_t __attribute__((vector_size(16)));
  using Halves = std::uint16_t __attribute__((vector_size(16)));
  const Halves four = (Halves)Words{load_vector<std::uint64_t>(p), 0};
  const PartBits bits = (PartBits)__builtin_shufflevector(four, Halves{}, 0, 8, 1, 9, 2, 10, 3, 11);  // zero-extended
  const Part size = (Part)((bits & 0x7FFF) << 13) * 0x1p112f;
  PartBits wide = (PartBits)size;
  wide |= (size >= 0x1p16f) & 0x7F800000;    // Inf and NaN have the largest exponent
  wide |= (wide > 0x7F800000) & 0x00400000;  // a NaN is quiet
  return (Part)(wide | (bits & 0x8000) << 16);
#endif
}

/// Requests the lines of n bytes, from p + ahead on, for a level of the cache. Outside of a tensor a request has no effect.
template <int kLevel>
TREE_ATTN_INLINE void request(const std::byte* p, std::int64_t ahead, std::int64_t n) {
  constexpr std::int64_t kLineBytes = 64;
  const auto address = reinterpret_cast<std::uintptr_t>(p);  // an integer, since p + ahead need not be in the tensor
  for (std::int64_t i = ahead; i < ahead + n; i += kLineBytes)
    __builtin_prefetch(reinterpret_cast<const void*>(address + static_cast<std::uintptr_t>(i)), 0, 4 - kLevel);
}

/// Sums of neighbours: x0 + x1, x2 + x3, .., then those of y.
TREE_ATTN_INLINE Quad add_neighbours(Quad x, Quad y) {
  return __builtin_shufflevector(x, y, 0, 2, 4, 6) + __builtin_shufflevector(x, y, 1, 3, 5, 7);
}
#if defined(__AVX512F__)
TREE_ATTN_INLINE Part add_neighbours(Part x, Part y) {
  return __builtin_shufflevector(x, y, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
         __builtin_shufflevector(x, y, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}
#elif defined(__AVX__)
TREE_ATTN_INLINE Part add_neighbours(Part x, Part y) {
  return __builtin_shufflevector(x, y, 0, 2, 4, 6, 8, 10, 12, 14) + __builtin_shufflevector(x, y, 1, 3, 5, 7, 9, 11, 13, 15);
}
#endif

#if defined(__AVX__)
/// Per row of sixteen, scale times the sum over its lanes: 8 + 8 lanes, 4 + 4, then neighbours. Halves of a row are loads,
/// so the first sums need no shuffle; those of two rows share a register after the second addition, those of four after the
/// third, and those of eight after the last.
/// @param[out] sums [16]
TREE_ATTN_INLINE void sum_each(const Lanes (&x)[16], float scale, float* sums) {
  using Octet = float __attribute__((vector_size(32)));
  const auto eight = [&](int i) TREE_ATTN_LAMBDA {
    const float* const row = reinterpret_cast<const float*>(x + i);
    return load_vector<Octet>(row) + load_vector<Octet>(row + 8);
  };
  const auto fours = [&](int i) TREE_ATTN_LAMBDA {  // of the rows i and i + 4
    const Octet a = eight(i), b = eight(i + 4);
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11) +
           __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
  };
  const auto add_neighbours_of_fours = [](Octet a, Octet b) TREE_ATTN_LAMBDA {
    return __builtin_shufflevector(a, b, 0, 2, 8, 10, 4, 6, 12, 14) +
           __builtin_shufflevector(a, b, 1, 3, 9, 11, 5, 7, 13, 15);
  };
  each<2>([&]<int half>() TREE_ATTN_LAMBDA {
    constexpr int i = 8 * half;
    const Octet scaled = scale * add_neighbours_of_fours(add_neighbours_of_fours(fours(i), fours(i + 1)),
                                                         add_neighbours_of_fours(fours(i + 2), fours(i + 3)));
    __builtin_memcpy(sums + i, &scaled, sizeof scaled);
  });
}
#else
/// Per row of sixteen, scale times the sum over its lanes: 8 + 8 lanes, 4 + 4, then neighbours.
/// @param[out] sums [16]
TREE_ATTN_INLINE void sum_each(const Lanes (&x)[16], float scale, float* sums) {
  const auto sum_to_quad = [](const Lanes& row)
                               TREE_ATTN_LAMBDA { return (row.part[0] + row.part[2]) + (row.part[1] + row.part[3]); };
  each<4>([&]<int i>() TREE_ATTN_LAMBDA {
    const Quad four = add_neighbours(add_neighbours(sum_to_quad(x[4 * i]), sum_to_quad(x[4 * i + 1])),
                                     add_neighbours(sum_to_quad(x[4 * i + 2]), sum_to_quad(x[4 * i + 3])));
    const Quad scaled = scale * four;
    __builtin_memcpy(sums + 4 * i, &scaled, sizeof scaled);
  });
}
#endif

/// The largest lane, which may not be NaN.
TREE_ATTN_INLINE float largest(Part x) {
  const auto larger = [](auto a, auto b) TREE_ATTN_LAMBDA { return a > b ? a : b; };
#if defined(__AVX512F__)
  const auto eight = larger(__builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7),
                            __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15));
#elif defined(__AVX__)
  const Part eight = x;
#endif
#if defined(__AVX__)
  const Quad four =
      larger(__builtin_shufflevector(eight, eight, 0, 1, 2, 3), __builtin_shufflevector(eight, eight, 4, 5, 6, 7));
#else
  const Quad four = x;
#endif
  const Quad two = larger(four, __builtin_shufflevector(four, four, 2, 3, 0, 1));
  return larger(two[0], two[1]);
}
/// Tests whether any lane of a mask is set.
TREE_ATTN_INLINE bool any(PartBits mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX__)
  return _mm256_testz_si256((__m256i)mask, (__m256i)mask) == 0;
#else
  return largest(select(mask, all(1), Part{})) > 0;
#endif
}

/// ceil(x), +0 where it is zero. From 2^23 on every element is whole; NaN and Inf stay.
TREE_ATTN_INLINE Part ceil(Part x) {
#if defined(__AVX512F__)
  return (Part)_mm512_maskz_roundscale_ps(0xFFFF, (__m512)x, _MM_FROUND_CEIL) + Part{};
#elif defined(__AVX__)
  return (Part)_mm256_ceil_ps((__m256)x) + Part{};
#else
  const PartBits small = (x < 0x1p23f) & (x > -0x1p23f);
  const Part whole = __builtin_convertvector(__builtin_convertvector(select(small, x, Part{}), PartBits), Part);
  return select(small, whole + select(whole < x, all(1), Part{}), x);
#endif
}

}  // namespace tree_attn::lanes
