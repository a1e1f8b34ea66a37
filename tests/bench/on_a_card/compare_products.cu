// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Compares the bits of products by `wgmma` with those by `mma.sync`: if they are equal, rows may stand on the side
/// of a product that a warpgroup takes from shared memory, and every sum stays as it is (section 6.3).
///
/// Run: compare_products
/// Random products of 16 x 16 and 16 x 8 elements of BF16 and F16, added to random sums in F32, four in a chain; the
/// elements have exponents of a narrow range, of a wide one, or are subnormal in part. Prints, for each, how many elements
/// were compared and how many differ. Compute capability 9.0 alone has `wgmma`; that of the GPU in software takes no left
/// operand from registers.
#include "gpu/engine/forest.cuh"
#include "tests/bench/time_ladder/clocks.cuh"
#include "tests/bench/time_ladder/program.hpp"

#include <type_traits>

namespace tree_attn::cuda {

constexpr int kSteps = 4, kGroup = 128;  ///< products of a chain, and threads of a warpgroup

__device__ inline std::uint32_t mixed(std::uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7FEB352D, x = (x ^ (x >> 15)) * 0x846CA68B;
  return x ^ (x >> 16);
}
/// Two elements of 16 bits with exponents within 2^-range of 1. @tparam T BFloat16 or Half
template <class T>
__device__ std::uint32_t random_pair(std::uint32_t seed, int range) {
  constexpr int kMantissa = std::is_same_v<T, Half> ? 10 : 7, kBias = std::is_same_v<T, Half> ? 15 : 127;
  std::uint32_t pair = 0;
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t bits = mixed(seed + 0x9E3779B9 * static_cast<std::uint32_t>(half + 1));
    const auto drop = static_cast<std::uint32_t>(range > 0 ? (bits >> 16) % static_cast<unsigned>(range) : 0);
    const std::uint32_t exponent = drop < kBias ? kBias - drop : 0;
    pair |= ((bits & 1) << 15 | exponent << kMantissa | (bits >> 1 & ((1U << kMantissa) - 1))) << (16 * half);
  }
  return pair;
}

/// d <- d + a b, by a warpgroup: a [64, 16] in registers, a warp 16 rows as for mma.sync; b [16, 8] in shared memory.
template <class T>
__device__ void multiply_by_group(float (&d)[4], const std::uint32_t (&a)[4], std::uint64_t b) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  if constexpr (std::is_same_v<T, Half>)
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, 1, 1, 1, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  else
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, 1, 1, 1, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])::"memory");
#endif
}

namespace {

/// Grid: any; block: a warpgroup, n_tiles chains each. @param range of exponents @param[out] n_different of elements
template <class T>
__global__ void __launch_bounds__(kGroup) compare(int n_tiles, int range, unsigned long long* n_different) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  Arena arena;
  const Shared<std::uint32_t> b = arena.take<std::uint32_t>(kSteps * 64);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  unsigned n = 0;
  for (int tile = 0; tile < n_tiles; ++tile) {
    const std::uint32_t seed = mixed(static_cast<std::uint32_t>(blockIdx.x * n_tiles + tile)) * 4096;
    // Of b [16, 8] its two halves of 8 rows, transposed: 8 columns of 16 bytes each.
    for (int i = thread; i < kSteps * 64; i += kGroup)
      b[i] = random_pair<T>(seed + 2048 + static_cast<std::uint32_t>(i), range);
    async_proxy_fence();
    __syncthreads();
    float by_warp[1][4], by_group[4];
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t bits = mixed(seed + 1024 + static_cast<std::uint32_t>(4 * thread + i));
      by_warp[0][i] = by_group[i] =
          (static_cast<float>(bits >> 8) / (1 << 20) - 8) * exp2_flushed(-static_cast<float>(bits % 32));
    }
    for (int step = 0; step < kSteps; ++step) {
      std::uint32_t a[1][4], of_b[1][2];
      for (int i = 0; i < 4; ++i)
        a[0][i] = random_pair<T>(
            seed + static_cast<std::uint32_t>(4 * thread + i) * 131 + static_cast<std::uint32_t>(step) * 7919, range);
      for (int half = 0; half < 2; ++half) of_b[0][half] = b[64 * step + 32 * half + lane];
      mma_16x8x16<T>(by_warp, a, of_b);
      // Where b begins, and 128 bytes from one half to the other, both in units of 16 bytes; not swizzled.
      const std::uint64_t where = (address_of(b) + 256U * static_cast<unsigned>(step)) >> 4 & 0x3FFF;
      multiply_by_group<T>(by_group, a[0], where | std::uint64_t{8} << 16 | std::uint64_t{16} << 32);
    }
    for (int i = 0; i < 4; ++i) n += __float_as_uint(by_warp[0][i]) != __float_as_uint(by_group[i]);
    __syncthreads();
  }
  atomicAdd(n_different, static_cast<unsigned long long>(n));
#endif
}

template <class T>
void compare_all(const char* name, Stream stream) {
  for (const int range : {1, 12, 40}) {
    constexpr int kTiles = 500;
    const auto n_blocks = static_cast<unsigned>(4 * device().n_multiprocessors);
    DeviceBuffer<unsigned long long> n_different(1);
    n_different.fill(0), synchronise({});
    launch(compare<T>, {.grid = {n_blocks}, .block = {kGroup}, .shared_bytes = kSteps * 256 + 128}, stream, kTiles, range,
           n_different.data());
    const auto n = static_cast<std::int64_t>(n_different.download()[0]);
    JsonLine("products")
        .add("dtype", name)
        .add("binades", range)
        .add("compared", std::int64_t{n_blocks} * kTiles * kGroup * 4)
        .add("different", n);
  }
}

int compare_types(const Options&) {
  const OwnedStream stream;
  compare_all<BFloat16>("BF16", stream), compare_all<Half>("F16", stream);
  return 0;  // a difference is a finding, and no fault
}

}  // namespace
}  // namespace tree_attn::cuda

int main(int argc, char** argv) {
  return tree_attn::run_program(argc, argv, "compare_products", tree_attn::cuda::compare_types);
}
