// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Kernels that repeat one primitive, each time after the last: a load, a fence, an atomic, a message to another
/// block (section 6).
#pragma once

#include "gpu/engine/forest.cuh"
#include "gpu/platform/device.hpp"

#include <cstdint>

namespace tree_attn::cuda {

/// Measurement of a thread.
struct Took {
  std::uint64_t nanoseconds = 0, cycles = 0, multiprocessor = 0;
};

/// Runs body(i) for i < n. @returns what it took
template <class Body>
__device__ __forceinline__ Took time_rounds(int n, const Body& body) {
  const auto cycles = [] {
    std::uint64_t now;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(now)::"memory");
    return now;
  };
  std::uint32_t multiprocessor;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
  const std::uint64_t begin = nanoseconds(), first = cycles();
  TREE_ATTN_LOOP
  for (int i = 0; i < n; ++i) body(i);
  const std::uint64_t last = cycles();
  return {nanoseconds() - begin, last - first, multiprocessor};
}

__device__ __forceinline__ void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
__device__ __forceinline__ void store_release(unsigned* to, unsigned x) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}
__device__ __forceinline__ unsigned load_acquire_device(const unsigned* from) {
  unsigned x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
  return x;
}
__device__ __forceinline__ unsigned atomic_add_relaxed(unsigned* counter) {
  unsigned before;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

/// Dependent loads past L1, one thread per block. @param next the index of each load's successor
static __global__ void chase(const unsigned* next, int n, Took* took) {
  unsigned at = 0;
  const Took found = time_rounds(n, [&](int) { at = load_fresh(next + at); });
  took[blockIdx.x] = found;
  if (at == ~0U) took[blockIdx.x].cycles = 0;  // never: so the loads are needed
}

/// One warp: n_stores of 512 bytes each, then a fence unless `fences` is 0. @param to [64 * 128] words
static __global__ void store_and_fence(float* to, int n_stores, int fences, int n, Took* took) {
  const int lane = static_cast<int>(threadIdx.x);
  const Took found = time_rounds(n, [&](int i) {
    for (int store = 0; store < n_stores; ++store)
      store_fresh16(to + store * 128 + 4 * lane, Bytes16{{static_cast<std::uint32_t>(i), 1, 2, 3}});
    if (fences != 0) fence_device();
  });
  if (lane == 0) *took = found;
}

/// One thread per block, all at the same counter. @param with_fences 0: none of them releases and acquires
static __global__ void count(unsigned* counter, int with_fences, int n, Took* took) {
  took[blockIdx.x] = time_rounds(n, [&](int) {
    if (with_fences != 0)
      atomic_inc_acq_rel(counter, ~0U);
    else
      atomic_add_relaxed(counter);
  });
}

/// Blocks 0 and `partner` answer each other: a word released, and acquired in a loop. A round is two messages. All blocks of
/// the launch are on the device at once. @param flags [64], zeros; leaves zeros
static __global__ void exchange_flags(unsigned* flags, int partner, int n, Took* took) {
  const int block = static_cast<int>(blockIdx.x);
  if (threadIdx.x > 0 || (block != 0 && block != partner)) return;
  unsigned *const own = flags + (block == 0 ? 0 : 32), *const other = flags + (block == 0 ? 32 : 0);
  const Took found = time_rounds(n, [&](int i) {
    const unsigned round = static_cast<unsigned>(i) + 1;
    if (block == 0) store_release(own, round);
    wait_until([&] { return load_acquire_device(other) == round; });
    if (block != 0) store_release(own, round);
  });
  if (block == 0) *took = found;
}

/// Barriers of a cluster, all threads of its blocks.
static __global__ void meet_cluster(int n, Took* took) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  const Took found = time_rounds(n, [](int) { cluster_sync(); });
  if (threadIdx.x == 0) took[blockIdx.x] = found;
#endif
}

/// Sends 8 bytes to the same place of another block of the cluster; they complete on that block's barrier.
__device__ __forceinline__ void store_async(std::uint64_t* shared, Barrier* barrier, int rank, std::uint64_t x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .b32 to, full;\nmapa.shared::cluster.u32 to, %0, %2;\nmapa.shared::cluster.u32 full, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [to], %3, [full];\n}" ::"r"(address_of(shared)),
      "r"(address_of(barrier)), "r"(rank), "l"(x)
      : "memory");
#endif
}

/// The first and the last block of a cluster answer each other by st.async. A round is two messages.
static __global__ void exchange_async(int n, Took* took) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  Arena arena;
  const Shared<std::uint64_t> word = arena.take<std::uint64_t>(1);
  const Shared<Barrier> full = arena.take<Barrier>(1);
  const int rank = cluster_rank(), last = static_cast<int>(gridDim.x) - 1;
  if (threadIdx.x == 0) {
    barrier_init(full, 1);
    barrier_fence_init();
    barrier_arrive_expect(full, 8);
  }
  cluster_sync();
  if (threadIdx.x == 0 && (rank == 0 || rank == last)) {
    const Took found = time_rounds(n, [&](int i) {
      const auto message = static_cast<std::uint64_t>(i);
      if (rank == 0) store_async(word, full, last, message);
      barrier_wait(full, i & 1);
      if (i + 1 < n) barrier_arrive_expect(full, 8);
      if (rank != 0) store_async(word, full, 0, message);
    });
    if (rank == 0) *took = found;
  }
  __syncthreads();  // whole warps meet at the barrier of the cluster
  cluster_sync();
#endif
}

/// The end of each block of a launch, after about a microsecond; and in the launch after it, when each block has waited for
/// the launch before, and has loaded a word of it.
static __global__ void note_ends(std::uint64_t* ends) {
  launch_dependents();
  const std::uint64_t begin = nanoseconds();
  wait_until([&] { return nanoseconds() - begin > 1000; });
  if (threadIdx.x == 0) ends[blockIdx.x] = nanoseconds();
}
static __global__ void note_first_loads(const std::uint64_t* ends, std::uint64_t* times) {
  if (threadIdx.x > 0) return wait_for_previous_launch();
  wait_for_previous_launch();
  const std::uint64_t waited = nanoseconds();
  const unsigned word = load_fresh(reinterpret_cast<const unsigned*>(ends));
  times[2 * blockIdx.x + 1] = nanoseconds() + (word == 0xDEADBEEF ? 1 : 0);
  times[2 * blockIdx.x] = waited;
}

/// A launch that does nothing.
static __global__ void empty() {
  launch_dependents();
  wait_for_previous_launch();
}

}  // namespace tree_attn::cuda
