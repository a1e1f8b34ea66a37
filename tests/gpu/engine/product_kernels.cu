// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The kernels of product_kernels.hpp.
#include "tests/gpu/engine/product_kernels.hpp"

#include "gpu/engine/warpgroup.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

constexpr int kSteps = 4;

__device__ int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ int warp() { return static_cast<int>(threadIdx.x) / kWarp; }
/// An element of c.
__device__ int sum_at(int n, int j, int i) {
  return (16 * warp() + lane() / 4 + i / 2 * 8) * 8 * n + 8 * j + lane() % 4 * 2 + i % 2;
}

/// One warpgroup, which copies a and b into boxes.
template <class T, int n, bool kIsTransposed, bool kInRegisters, bool kByGroup>
__device__ void add_product(const Bytes16* in_a, const Bytes16* in_b, float* c) {
  Arena arena;
  const Shared<Bytes16> a = arena.take<Bytes16>(64 * kRowVectors, kBoxAlignment),
                        b = arena.take<Bytes16>(8 * n * kRowVectors, kBoxAlignment);
  for (int i = static_cast<int>(threadIdx.x); i < 64 * kRowVectors; i += kWarpgroup)
    store16(a + vector_at(i / kRowVectors, i % kRowVectors), load16_global(in_a + i));
  for (int i = static_cast<int>(threadIdx.x); i < 8 * n * kRowVectors; i += kWarpgroup)
    store16(b + vector_at(i / kRowVectors, i % kRowVectors), load16_global(in_b + i));
  float sums[n][4];
  for (int j = 0; j < n; ++j)
    for (int i = 0; i < 4; ++i) sums[j][i] = load_fresh(c + sum_at(n, j, i));
  if constexpr (kByGroup) async_proxy_fence();
  __syncthreads();
  if constexpr (kInRegisters) {
    std::uint32_t of_a[kSteps][4];
    load_matrices_x4(of_a, [&](int step) { return a + vector_at(16 * warp() + lane() % 16, 2 * step + lane() / 16); });
    if constexpr (kByGroup) {
      wgmma_fence(sums);
      wgmma_of_registers_64xNx16<T>(sums, of_a, [&](int i) { return box_matrix(b) + i * 16 * kBoxRowBytes; });
      wgmma_commit();
      wgmma_wait<0>(sums);
    } else {
      for (int step = 0; step < kSteps; ++step) {
        std::uint32_t of_b[n / 2][4];
        load_matrices_x4_transposed(of_b, [&](int i) {
          return b + (i / 4 * 64 * kRowVectors + vector_at(16 * step + lane() % 16, 2 * (i % 4) + lane() / 16));
        });
        for (int j = 0; j < n; ++j) {
          const std::uint32_t columns[1][2] = {{of_b[j / 2][j % 2 * 2], of_b[j / 2][j % 2 * 2 + 1]}};
          mma_16x8x16<T>(sums + j, reinterpret_cast<const std::uint32_t(&)[1][4]>(of_a[step]), columns);
        }
      }
    }
  } else if constexpr (kByGroup) {
    const BoxMatrix first = box_matrix(a), second = box_matrix(b);
    wgmma_fence(sums);
    wgmma_64xNx16<T, kSteps, kIsTransposed>(
        sums, [&](int i) { return first + i * (kIsTransposed ? 2048 : 32); }, [&](int i) { return second + 32 * i; });
    wgmma_commit();
    wgmma_wait<0>(sums);
  } else {
    for (int step = 0; step < kSteps; ++step) {
      std::uint32_t of_a[1][4], of_b[n / 2][4];
      if constexpr (kIsTransposed)
        load_matrices_x4_transposed(
            of_a, [&](int) { return a + vector_at(16 * step + lane() / 16 * 8 + lane() % 8, 2 * warp() + lane() / 8 % 2); });
      else
        load_matrices_x4(of_a, [&](int) { return a + vector_at(16 * warp() + lane() % 16, 2 * step + lane() / 16); });
      load_matrices_x4(
          of_b, [&](int i) { return b + vector_at(16 * i + lane() / 16 * 8 + lane() % 8, 2 * step + lane() / 8 % 2); });
      for (int j = 0; j < n; ++j) {
        const std::uint32_t columns[1][2] = {{of_b[j / 2][j % 2 * 2], of_b[j / 2][j % 2 * 2 + 1]}};
        mma_16x8x16<T>(sums + j, of_a, columns);
      }
    }
  }
  for (int j = 0; j < n; ++j)
    for (int i = 0; i < 4; ++i) store_fresh(c + sum_at(n, j, i), sums[j][i]);
}

template <class T, int n, bool kIsTransposed, bool kInRegisters, bool kByGroup>
__global__ void __launch_bounds__(kWarpgroup) multiply(const Bytes16* a, const Bytes16* b, float* c) {
  if constexpr (!kByGroup || kHasWarpgroups) add_product<T, n, kIsTransposed, kInRegisters, kByGroup>(a, b, c);
}

template <class T>
DeviceBuffer<T> on_device(const std::vector<T>& elements) {
  DeviceBuffer<T> buffer(static_cast<std::int64_t>(elements.size()));
  buffer.upload(elements);
  return buffer;
}

template <bool kByGroup>
std::vector<float> products(const ProductCase& of) {
  const DeviceBuffer<std::uint16_t> a = on_device(of.a), b = on_device(of.b);
  DeviceBuffer<float> c = on_device(of.c);
  const auto run = [&]<class T, int n>(T, std::integral_constant<int, n>) {
    const auto kernel = [&] {
      if constexpr (n >= 8)
        if (n == 16 || of.is_in_registers) return multiply<T, n, false, true, kByGroup>;
      if constexpr (n <= 8)
        return of.is_transposed ? multiply<T, n, true, false, kByGroup> : multiply<T, n, false, false, kByGroup>;
    }();
    launch(kernel, {.block = {kWarpgroup}, .shared_bytes = 8192 + 1024 * n}, {}, reinterpret_cast<const Bytes16*>(a.data()),
           reinterpret_cast<const Bytes16*>(b.data()), c.data());
  };
  const auto with_type = [&]<class T>(T type) {
    if (of.n_columns == 16) return run(type, std::integral_constant<int, 2>{});
    if (of.n_columns == 32) return run(type, std::integral_constant<int, 4>{});
    if (of.n_columns == 128) return run(type, std::integral_constant<int, 16>{});
    run(type, std::integral_constant<int, 8>{});
  };
  if (of.dtype == DType::F16)
    with_type(Half{});
  else
    with_type(BFloat16{});
  return c.download();
}

}  // namespace

std::vector<float> products_of_warps(const ProductCase& of) { return products<false>(of); }
std::vector<float> products_of_warpgroup(const ProductCase& of) { return products<true>(of); }

}  // namespace tree_attn::TREE_ATTN_PLATFORM
