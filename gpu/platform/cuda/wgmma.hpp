// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Products of a warpgroup, which take their operands from shared memory and go on while its threads do something
/// else: compute capability 9.0 (PTX ISA 9.0, 9.7.15).
///
/// A warpgroup is four warps of a block, the first of which has a number divisible by four. All of its threads call every
/// function here but store_matrices_x4_transposed(), which is one of a warp.
#pragma once

#include "gpu/platform/cuda/device.hpp"

namespace tree_attn::cuda {

/// A matrix of 16-bit elements in shared memory: rows of 64, swizzled as in a box of a tensor map, one box or several.
struct BoxMatrix {
  std::uint32_t low;  ///< half of what the instruction takes; the other half is equal for all
  /// The matrix that begins n_bytes further on: 16 columns are 32 bytes, 8 rows 1024.
  __device__ BoxMatrix operator+(int n_bytes) const { return {low + (static_cast<std::uint32_t>(n_bytes) >> 4)}; }
  /// Units are 16 bytes: from eight rows to the next eight there are 64, and to the next box, which is told in the lower
  /// half and asked for where rows of b have more than 64 elements, 512. The last two bits ask for the swizzle of 128 bytes.
  __device__ std::uint64_t descriptor() const { return std::uint64_t{1} << 62 | std::uint64_t{64} << 32 | low; }
};
/// Describes the matrix whose first row is the first one of a box.
template <class T>
__device__ inline BoxMatrix box_matrix(const T* box) {
  return {(address_of(box) >> 4 & 0x3FFF) | 512 << 16};
}

/// Four 8 x 8 matrices to shared memory, each transposed: lane i brings, of each, rows 2 (i % 4) and the next of column
/// i / 4; lane i of 32 says where row i % 8 of matrix i / 8 goes. The inverse of load_matrices_x4_transposed().
template <class T>
__device__ inline void store_matrices_x4_transposed(T* row, const std::uint32_t (&in)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address_of(row)), "r"(in[0]),
               "r"(in[1]), "r"(in[2]), "r"(in[3])
               : "memory");
#endif
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Keeps what the compiler does to sums, [n][4] or several of them, on its side of this line.
__device__ inline void keep_in_place(float& c) { asm volatile("" : "+f"(c)::"memory"); }
template <class T, int n>
__device__ inline void keep_in_place(T (&c)[n]) {
  TREE_ATTN_UNROLL
  for (int i = 0; i < n; ++i) keep_in_place(c[i]);
}
/// Lets the products that follow have these sums, which threads have written or read. Before the first product, and again
/// after every wgmma_wait().
template <class C>
__device__ inline void wgmma_fence(C& c) {
  keep_in_place(c);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/// Ends the group of the products that have been started.
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until all but the last kPending groups have ended. Their sums, which the wait names, and their operands may then be
/// touched.
template <int kPending, class C>
__device__ inline void wgmma_wait(C& c) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
  keep_in_place(c);
}

#define TREE_ATTN_SUMS(j) "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
#define TREE_ATTN_WGMMA(shape, type, sums, a_at, b_at, transposed_at, ...)                                \
  asm volatile("wgmma.mma_async.sync.aligned." shape ".f32." type "." type " {" sums "}, " a_at ", " b_at \
               ", 1, 1, 1, " transposed_at ", 0;"                                                         \
               : __VA_ARGS__                                                                              \
               : "l"(a.descriptor()), "l"(b.descriptor()), "n"(kIsTransposed ? 1 : 0))
#define TREE_ATTN_WGMMA_16(type)                                                                             \
  TREE_ATTN_WGMMA("m64n16k16", type, "%0, %1, %2, %3, %4, %5, %6, %7", "%8", "%9", "%10", TREE_ATTN_SUMS(0), \
                  TREE_ATTN_SUMS(1))
#define TREE_ATTN_WGMMA_32(type)                                                                                           \
  TREE_ATTN_WGMMA("m64n32k16", type, "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15", "%16", "%17", \
                  "%18", TREE_ATTN_SUMS(0), TREE_ATTN_SUMS(1), TREE_ATTN_SUMS(2), TREE_ATTN_SUMS(3))
#define TREE_ATTN_SUMS_16                                                                                           \
  TREE_ATTN_SUMS(0), TREE_ATTN_SUMS(1), TREE_ATTN_SUMS(2), TREE_ATTN_SUMS(3), TREE_ATTN_SUMS(4), TREE_ATTN_SUMS(5), \
      TREE_ATTN_SUMS(6), TREE_ATTN_SUMS(7)
#define TREE_ATTN_FIRST_SUMS                                                                             \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TREE_ATTN_WGMMA_64(type) \
  TREE_ATTN_WGMMA("m64n64k16", type, TREE_ATTN_FIRST_SUMS, "%32", "%33", "%34", TREE_ATTN_SUMS_16)

#define TREE_ATTN_WGMMA_OF_REGISTERS(shape, type, sums, a_at, b_at, ...)                                                  \
  asm volatile("wgmma.mma_async.sync.aligned." shape ".f32." type "." type " {" sums "}, " a_at ", " b_at ", 1, 1, 1, 1;" \
               : __VA_ARGS__                                                                                              \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor()))
#define TREE_ATTN_WGMMA_OF_REGISTERS_64(type) \
  TREE_ATTN_WGMMA_OF_REGISTERS("m64n64k16", type, TREE_ATTN_FIRST_SUMS, "{%32, %33, %34, %35}", "%36", TREE_ATTN_SUMS_16)
#define TREE_ATTN_WGMMA_OF_REGISTERS_128(type)                                                                           \
  TREE_ATTN_WGMMA_OF_REGISTERS("m64n128k16", type,                                                                       \
                               TREE_ATTN_FIRST_SUMS                                                                      \
                               ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, " \
                               "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63",              \
                               "{%64, %65, %66, %67}", "%68", TREE_ATTN_SUMS_16, TREE_ATTN_SUMS(8), TREE_ATTN_SUMS(9),   \
                               TREE_ATTN_SUMS(10), TREE_ATTN_SUMS(11), TREE_ATTN_SUMS(12), TREE_ATTN_SUMS(13),           \
                               TREE_ATTN_SUMS(14), TREE_ATTN_SUMS(15))

/// Starts c <- c + a(0) b(0) + a(1) b(1) + .., one product after the other, with a(i) [64, 16], b(i) [16, 8 n] and c [64,
/// 8 n]; n is 2, 4 or 8. A warp has 16 rows of c, each thread those of mma_16x8x16(): c[j] are the columns from 8 j on. b(i)
/// is in memory column by column: a row of the box matrix holds 16 elements of a column. A row of a(i)'s holds 16 elements
/// of a row, or, if it is transposed, the 64 elements of a column.
/// @param a, b (i) -> BoxMatrix, from which products are read until wgmma_wait()
template <class T, int kProducts, bool kIsTransposed = false, int n, class A, class B>
__device__ inline void wgmma_64xNx16(float (&c)[n][4], const A& of_a, const B& of_b) {
  static_assert(n == 2 || n == 4 || n == 8);
  TREE_ATTN_UNROLL
  for (int i = 0; i < kProducts; ++i) {
    const BoxMatrix a = of_a(i), b = of_b(i);
    if constexpr (std::is_same_v<T, Half>) {
      if constexpr (n == 2) TREE_ATTN_WGMMA_16("f16");
      if constexpr (n == 4) TREE_ATTN_WGMMA_32("f16");
      if constexpr (n == 8) TREE_ATTN_WGMMA_64("f16");
    } else {
      static_assert(std::is_same_v<T, BFloat16>);
      if constexpr (n == 2) TREE_ATTN_WGMMA_16("bf16");
      if constexpr (n == 4) TREE_ATTN_WGMMA_32("bf16");
      if constexpr (n == 8) TREE_ATTN_WGMMA_64("bf16");
    }
  }
}

/// Starts c <- c + a[0] b(0) + a[1] b(1) + .. likewise, with each a in registers: of the 16 rows of a warp what
/// mma_16x8x16() takes. b(i) is in memory row by row: a row of the box matrix holds 64 elements of one of its rows, and
/// where n is 16 and not 8, the next box the others.
template <class T, int kProducts, int n, class B>
__device__ inline void wgmma_of_registers_64xNx16(float (&c)[n][4], const std::uint32_t (&of_a)[kProducts][4],
                                                  const B& of_b) {
  static_assert(n == 8 || n == 16);
  TREE_ATTN_UNROLL
  for (int i = 0; i < kProducts; ++i) {
    const std::uint32_t(&a)[4] = of_a[i];
    const BoxMatrix b = of_b(i);
    if constexpr (std::is_same_v<T, Half>) {
      if constexpr (n == 8) TREE_ATTN_WGMMA_OF_REGISTERS_64("f16");
      if constexpr (n == 16) TREE_ATTN_WGMMA_OF_REGISTERS_128("f16");
    } else {
      static_assert(std::is_same_v<T, BFloat16>);
      if constexpr (n == 8) TREE_ATTN_WGMMA_OF_REGISTERS_64("bf16");
      if constexpr (n == 16) TREE_ATTN_WGMMA_OF_REGISTERS_128("bf16");
    }
  }
}

#undef TREE_ATTN_WGMMA_OF_REGISTERS_128
#undef TREE_ATTN_WGMMA_OF_REGISTERS_64
#undef TREE_ATTN_WGMMA_OF_REGISTERS
#undef TREE_ATTN_WGMMA_64
#undef TREE_ATTN_FIRST_SUMS
#undef TREE_ATTN_SUMS_16
#undef TREE_ATTN_WGMMA_32
#undef TREE_ATTN_WGMMA_16
#undef TREE_ATTN_WGMMA
#undef TREE_ATTN_SUMS

#else
// Kernels for either capability name these, and are empty but for sm_90a.
template <class C>
__device__ inline void wgmma_fence(C&) {}
__device__ inline void wgmma_commit() {}
template <int kPending, class C>
__device__ inline void wgmma_wait(C&) {}
template <class T, int kProducts, bool kIsTransposed = false, int n, class A, class B>
__device__ inline void wgmma_64xNx16(float (&)[n][4], const A&, const B&) {}
template <class T, int kProducts, int n, class B>
__device__ inline void wgmma_of_registers_64xNx16(float (&)[n][4], const std::uint32_t (&)[kProducts][4], const B&) {}
#endif

}  // namespace tree_attn::cuda
