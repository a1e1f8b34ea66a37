// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The emulated side of gpu/platform/cuda/wgmma.hpp.
#pragma once

#include "gpu/emulator/device.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace tree_attn::emulated {

/// A matrix in shared memory, see gpu/platform/cuda/wgmma.hpp.
struct BoxMatrix {
  const std::byte* at;
  BoxMatrix operator+(int n_bytes) const { return {at + n_bytes}; }
};
template <class T>
BoxMatrix box_matrix(Shared<T> box, const Line& line = Line::current()) {
  return {reinterpret_cast<const std::byte*>(runtime::plain<runtime::Access::kBoundsOnly>(box, 16, line))};
}

template <class T>
void store_matrices_x4_transposed(Shared<T> row, const std::uint32_t (&in)[4], const Line& line = Line::current()) {
  auto* const at = runtime::plain<runtime::Access::kWrite>(row, 16, line);
  runtime::check_aligned16(at, "store_matrices_x4_transposed", line);
  runtime::store_matrices(at, in, line);
}

namespace runtime {

/// The sums of a thread in one chain of products: [n][4].
struct Sums {
  float (*c)[4];
  int n;
};
/// Products of 16 columns of a with 16 rows of b, as a thread asks for them.
struct WgmmaCall {
  Sums sums;
  const BoxMatrix *a, *b;
  int n_products;
  bool is_half, is_transposed;
  const std::uint32_t (*registers)[4] = nullptr;  ///< of the thread, in place of a; then b is transposed
};
void wgmma_fence(const Sums* sums, int n, const Line& line);
void wgmma(WgmmaCall call, const Line& line);
void wgmma_commit(const Line& line);
void wgmma_wait(int n_pending, const Sums* sums, int n, const Line& line);

/// Sums of one chain, or of several in an array. Not in memory that a thread owns, which a failed launch would not free.
template <int n>
std::array<Sums, 1> sums_of(float (&c)[n][4]) {
  return {{{c, n}}};
}
template <int m, int n>
std::array<Sums, m> sums_of(float (&c)[m][n][4]) {
  std::array<Sums, m> all;
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = {c[i], n};
  return all;
}

}  // namespace runtime

template <class C>
void wgmma_fence(C& c, const Line& line = Line::current()) {
  const auto all = runtime::sums_of(c);
  runtime::wgmma_fence(all.data(), static_cast<int>(all.size()), line);
}
inline void wgmma_commit(const Line& line = Line::current()) { runtime::wgmma_commit(line); }
template <int kPending, class C>
void wgmma_wait(C& c, const Line& line = Line::current()) {
  const auto all = runtime::sums_of(c);
  runtime::wgmma_wait(kPending, all.data(), static_cast<int>(all.size()), line);
}
template <class T, int kProducts, bool kIsTransposed = false, int n, class A, class B>
void wgmma_64xNx16(float (&c)[n][4], const A& of_a, const B& of_b, const Line& line = Line::current()) {
  static_assert(DTypeTraits<T>::kCores == KernelCores::TensorCores && sizeof(T) == 2 && (n == 2 || n == 4 || n == 8));
  BoxMatrix a[kProducts], b[kProducts];
  for (int i = 0; i < kProducts; ++i) a[i] = of_a(i), b[i] = of_b(i);
  runtime::wgmma({{c, n}, a, b, kProducts, std::is_same_v<T, Half>, kIsTransposed}, line);
}
template <class T, int kProducts, int n, class B>
void wgmma_of_registers_64xNx16(float (&c)[n][4], const std::uint32_t (&a)[kProducts][4], const B& of_b,
                                const Line& line = Line::current()) {
  static_assert(DTypeTraits<T>::kCores == KernelCores::TensorCores && sizeof(T) == 2 && (n == 8 || n == 16));
  BoxMatrix b[kProducts];
  for (int i = 0; i < kProducts; ++i) b[i] = of_b(i);
  runtime::wgmma({{c, n}, nullptr, b, kProducts, std::is_same_v<T, Half>, true, a}, line);
}

}  // namespace tree_attn::emulated
