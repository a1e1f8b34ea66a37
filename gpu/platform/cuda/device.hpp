// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The device side of gpu/platform/device.hpp: one instruction a wrapper (PTX ISA 9.0).
#pragma once

#include "gpu/platform/cuda/tensor_map.hpp"
#include "gpu/types/bytes16.hpp"
#include "gpu/types/cache_hint.hpp"
#include "gpu/types/packet.hpp"
#include "gpu/types/platform.hpp"

#include <cstdint>
#include <type_traits>

namespace tree_attn::cuda {

/// Pointer into shared memory.
template <class T>
using Shared = T*;

/// Views shared memory as elements of another type.
template <class U, class T>
__device__ inline Shared<U> shared_as(T* shared) {
  return reinterpret_cast<U*>(shared);
}

/// Hands out the dynamic shared memory of the block, piece by piece; every thread makes the same calls.
class Arena {
 public:
  __device__ Arena() {
    extern __shared__ __align__(1024) unsigned char tree_attn_shared_memory[];
    // Its address in a register: else the compiler works it out anew, from the block's rank in its cluster, in every
    // branch.
    auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(tree_attn_shared_memory));
    asm("" : "+r"(address));
    memory_ = static_cast<unsigned char*>(__cvta_shared_to_generic(address));
  }
  /// The next n elements.
  /// @param alignment of their address in bytes: 128, or a larger power of two up to 1024
  template <class T>
  __device__ Shared<T> take(std::int64_t n, int alignment = 128) {
    next_ = (next_ + alignment - 1) / alignment * alignment;
    T* const taken = reinterpret_cast<T*>(memory_ + next_);
    next_ += (n * static_cast<std::int64_t>(sizeof(T)) + 127) / 128 * 128;
    return taken;
  }

 private:
  unsigned char* memory_;
  std::int64_t next_ = 0;
};

/// The address of shared memory as instructions take it.
template <class T>
__device__ inline std::uint32_t address_of(T* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}

// ---- Arithmetic that is rounded as written

__device__ inline float multiply(float a, float b) { return __fmul_rn(a, b); }
__device__ inline float fused_multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
/// Products of two BF16, lower half with lower half and upper with upper: adding -0 changes none. sm_80 has no mul.bf16x2.
__device__ inline std::uint32_t multiply_pairs(std::uint32_t a, std::uint32_t b) {
  std::uint32_t products;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(products) : "r"(a), "r"(b), "r"(0x80008000u));
  return products;
}

/// 2^x, and 0 where that is below 2^-126. At most 2 units in the last place from 2^x. -inf gives 0, +inf gives +inf, NaN
/// gives NaN.
__device__ inline float exp2_flushed(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

/// Hides a number from the optimiser: expressions of it are computed where they are needed, and not kept in registers from
/// round to round of a loop.
__device__ inline int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

template <class T>
__device__ inline T* opaque(T* x) {
  asm volatile("" : "+l"(x));
  return x;
}

// ---- Loads and stores

/// 16 bytes of shared memory, at a multiple of 16.
template <class T>
__device__ inline Bytes16 load16(const T* from) {
  return *reinterpret_cast<const Bytes16*>(from);
}
template <class T>
__device__ inline void store16(T* to, const Bytes16& bytes) {
  *reinterpret_cast<Bytes16*>(to) = bytes;
}

/// 16 bytes of global memory that no kernel writes, read once: past L1.
__device__ inline Bytes16 load16_global(const void* from) {
  Bytes16 bytes;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(bytes.word[0]), "=r"(bytes.word[1]), "=r"(bytes.word[2]), "=r"(bytes.word[3])
      : "l"(from));
  return bytes;
}
/// One number of global memory that no kernel writes.
template <class T>
__device__ inline T load_once(const T* from) {
  return *from;
}
/// One number of 4 bytes that another block may have written in this launch: from L2, where all blocks meet.
template <class T>
__device__ inline T load_fresh(const T* from) {
  static_assert(sizeof(T) == 4);
  return __ldcg(from);
}
/// One number for load_fresh(), in this launch.
template <class T>
__device__ inline void store_fresh(T* to, std::type_identity_t<T> x) {
  static_assert(sizeof(T) == 4);
  __stcg(to, x);
}
/// Loads and stores 16 bytes in this way, at a multiple of 16.
__device__ inline Bytes16 load_fresh16(const float* from) {
  const uint4 words = __ldcg(reinterpret_cast<const uint4*>(from));
  return {{words.x, words.y, words.z, words.w}};
}
__device__ inline void store_fresh16(float* to, const Bytes16& bytes) {
  __stcg(reinterpret_cast<uint4*>(to), make_uint4(bytes.word[0], bytes.word[1], bytes.word[2], bytes.word[3]));
}

/// A counter in global memory, incremented by one thread: 0, 1, ..., last, 0, ... @returns its value before
///
/// It releases and acquires for the whole device: what the thread wrote, or saw after a barrier, before an increment is seen
/// by every thread that a later increment, and a barrier after it, precede.
__device__ inline unsigned atomic_inc_acq_rel(unsigned* counter, unsigned last) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(last) : "memory");
  return before;
}

// ---- Waiting for memory that others write

/// Calls ready() until it is true. Meanwhile other threads, blocks and devices run; this block stays resident.
///
/// Blocks that wait for others of the same grid need Launch::is_cooperative, and blocks that wait for another launch need
/// one that the device can hold beside them: a wait for a block that never becomes resident does not end.
template <class Ready>
__device__ inline void wait_until(const Ready& ready) {
  while (!ready()) {
  }
}
/// A word by which the host, or threads that run at the same time, tell others something.
__device__ inline unsigned load_acquire(const unsigned* from) {
  unsigned value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// ---- Windows: memory that other devices store to, at system scope

/// A packet into a window of any device; it arrives at any time, as a whole: one access of 128 bits.
__device__ inline void store_packet(Packet* to, const Packet& packet) {
  std::uint64_t half[2];
  memcpy(half, &packet, sizeof half);
  asm volatile("{\n.reg .b128 x;\nmov.b128 x, {%1, %2};\nst.relaxed.sys.global.b128 [%0], x;\n}" ::"l"(to), "l"(half[0]),
               "l"(half[1])
               : "memory");
}
__device__ inline Packet load_packet(const Packet* from) {
  std::uint64_t half[2];
  asm volatile("{\n.reg .b128 x;\nld.relaxed.sys.global.b128 x, [%2];\nmov.b128 {%0, %1}, x;\n}"
               : "=l"(half[0]), "=l"(half[1])
               : "l"(from)
               : "memory");
  Packet packet;
  memcpy(&packet, half, sizeof packet);
  return packet;
}

/// Time of this device, in nanoseconds since some moment.
__device__ inline std::uint64_t nanoseconds() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// ---- Some warps of a block

/// A barrier of every n neighbouring threads of the block: whole warps, which number a divisor of those of the block, 1 to
/// 15 times. One instruction in the program of all of them.
__device__ inline void sync_neighbours(int n) {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + static_cast<int>(threadIdx.x) / n), "r"(n) : "memory");
}

// ---- Asynchronous copies, sm_80

/// Starts to copy `n_bytes` (0 to 16) from global memory; the rest of the 16 bytes becomes zero. Both addresses are
/// multiples of 16.
template <class T>
__device__ inline void copy_async16(T* to, const void* from, int n_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address_of(to)), "l"(from), "r"(n_bytes) : "memory");
}
/// Ends the group of the copies that this thread has started.
__device__ inline void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until all but the last kPending groups of this thread have arrived: for this thread; others need a barrier after
/// it.
template <int kPending>
__device__ inline void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// ---- Bulk copies completing on an mbarrier, sm_90

/// An mbarrier in shared memory.
struct Barrier {
  std::uint64_t word;
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
/// Readies a barrier whose phases end with `count` arrivals. One thread; then barrier_fence_init() and a barrier of the
/// block.
__device__ inline void barrier_init(Barrier* barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address_of(barrier)), "r"(count) : "memory");
}
/// Makes initialised barriers known to the copy engine and to the cluster.
__device__ inline void barrier_fence_init() {
  asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory");
}
/// True for one lane of a warp. All of its lanes call it; the compiler knows that it is one.
__device__ inline bool elect_one() {
  std::uint32_t is_elected;
  asm volatile("{\n.reg .pred elected;\nelect.sync _|elected, 0xFFFFFFFF;\nselp.u32 %0, 1, 0, elected;\n}"
               : "=r"(is_elected));
  return is_elected != 0;
}
/// Orders what this thread has written to shared memory, or sees there after a barrier, before bulk copies to the same
/// memory that are started after it.
__device__ inline void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/// One arrival.
__device__ inline void barrier_arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address_of(barrier)) : "memory");
}
/// One arrival, and `n_bytes` more to come by bulk copies before the phase may end.
__device__ inline void barrier_arrive_expect(Barrier* barrier, int n_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address_of(barrier)), "r"(n_bytes) : "memory");
}
/// Waits until the phase of the given parity (0 for the first) has ended.
__device__ inline void barrier_wait(Barrier* barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra ready;\nbra again;\nready:\n}" ::"r"(address_of(barrier)),
      "r"(parity)
      : "memory");
}
/// The policy of lines that leave L2 first.
__device__ inline std::uint64_t evict_first_policy() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
/// Starts to copy `n_bytes`, a multiple of 16, between addresses that are multiples of 16; they count towards `barrier`.
template <class T>
__device__ inline void bulk_copy(T* to, const void* from, int n_bytes, Barrier* barrier,
                                 CacheHint hint = CacheHint::Normal) {
  if (hint == CacheHint::EvictFirst) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
            address_of(to)),
        "l"(from), "r"(n_bytes), "r"(address_of(barrier)), "l"(evict_first_policy())
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address_of(to)),
        "l"(from), "r"(n_bytes), "r"(address_of(barrier))
        : "memory");
  }
}
/// Starts to copy a box of the array that a tensor map describes: map's `rows` positions from `row` on, kBoxColumns elements
/// of each from `column` on, of one head of one entry. They arrive as rows of 128 bytes with the vectors of a row swizzled,
/// see swizzled_unit(), or of 64 bytes as they are. One thread; the barrier is told of all bytes of the box beforehand, by
/// barrier_arrive_expect().
///
/// What lies outside the array arrives as zeros. What lies inside is read whatever it is: positions past the length of a
/// sequence, up to the capacity of the cache, arrive with the contents of the memory.
/// @tparam T element type of the map @param to a multiple of kBoxAlignment, or of 128 for F8_E4M3
template <class T, class U>
__device__ inline void bulk_copy_tensor(U* to, const TensorMap& map, int column, int row, int head, int entry,
                                        Barrier* barrier, CacheHint hint = CacheHint::Normal) {
  if (hint == CacheHint::EvictFirst) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, "
        "%3, "
        "%4, %5}], [%6], %7;" ::"r"(address_of(to)),
        "l"(&map), "r"(column), "r"(row), "r"(head), "r"(entry), "r"(address_of(barrier)), "l"(evict_first_policy())
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
        "[%6];" ::"r"(address_of(to)),
        "l"(&map), "r"(column), "r"(row), "r"(head), "r"(entry), "r"(address_of(barrier))
        : "memory");
  }
}

/// bulk_copy_tensor() to the same place in several blocks of the cluster, each of which is told of the bytes beforehand, by
/// its own barrier: one read of L2 for all of them. @param ranks bit r: to block r
template <class T, class U>
__device__ inline void bulk_copy_tensor_to(unsigned ranks, U* to, const TensorMap& map, int column, int row, int head,
                                           int entry, Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, "
      "%3, %4, %5}], [%6], %7;" ::"r"(address_of(to)),
      "l"(&map), "r"(column), "r"(row), "r"(head), "r"(entry), "r"(address_of(barrier)),
      "h"(static_cast<std::uint16_t>(ranks))
      : "memory");
}

// ---- Clusters, sm_90

/// One arrival at the barrier in the same place of a block of the cluster, which may be this one.
__device__ inline void barrier_arrive_at(Barrier* barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}" ::"r"(address_of(barrier)),
      "r"(rank)
      : "memory");
}
/// Rank of this block in its cluster, and how many there are.
__device__ inline int cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
/// A barrier of all threads of the cluster; writes before it are visible after it.
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/// Maps an address to the shared memory of another block of the cluster. The other block must not have ended.
template <class T>
__device__ inline T* remote(T* shared, int rank) {
  T* mapped;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(mapped) : "l"(shared), "r"(rank));
  return mapped;
}
#else
// Templates for either capability name these, and use them for sm_90 alone.
__device__ void barrier_init(Barrier* barrier, int count);
__device__ void barrier_fence_init();
__device__ bool elect_one();
__device__ void async_proxy_fence();
__device__ void barrier_arrive(Barrier* barrier);
__device__ void barrier_arrive_expect(Barrier* barrier, int n_bytes);
__device__ void barrier_wait(Barrier* barrier, int parity);
__device__ void barrier_arrive_at(Barrier* barrier, int rank);
__device__ int cluster_rank();
__device__ void cluster_sync();
#endif

// ---- Launches that overlap, sm_90; before it no launch overlaps, and both words do nothing

/// Lets the next launch on the stream begin once every block of this one has called it or has ended, if that launch asks for
/// it (Launch::overlaps). It says nothing about what this launch has written: see wait_for_previous_launch().
__device__ inline void launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/// Waits until the launch before this one on the stream has ended, and all that it wrote is visible. Returns at once in a
/// launch that does not overlap.
///
/// Before the wait a thread may read what neither the previous launch nor one still running before it writes: its
/// parameters, and input. It may write shared memory, and no global memory that an earlier launch reads or writes, which
/// includes a workspace and counters that they share. Every thread that does either after the wait calls it, and in a chain
/// of overlapping launches every block of each calls it before it ends.
__device__ inline void wait_for_previous_launch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- Tensor cores, sm_80

/// n times four 8 x 8 matrices of 16-bit numbers: lane i gives the address of row i % 8 of matrix i / 8; lane i receives, of
/// every matrix, the numbers 2 (i % 4) and the next of row i / 4.
/// @param row (j) -> address, of 16-byte vectors, for the j-th four matrices
template <int n, class Row>
__device__ inline void load_matrices_x4(std::uint32_t (&out)[n][4], const Row& row) {
  TREE_ATTN_UNROLL
  for (int j = 0; j < n; ++j) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[j][0]), "=r"(out[j][1]), "=r"(out[j][2]), "=r"(out[j][3])
                 : "r"(address_of(row(j)))
                 : "memory");
  }
}
/// Loads the matrices, each transposed: lane i receives rows 2 (i % 4) and the next of column i / 4.
template <int n, class Row>
__device__ inline void load_matrices_x4_transposed(std::uint32_t (&out)[n][4], const Row& row) {
  TREE_ATTN_UNROLL
  for (int j = 0; j < n; ++j) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[j][0]), "=r"(out[j][1]), "=r"(out[j][2]), "=r"(out[j][3])
                 : "r"(address_of(row(j)))
                 : "memory");
  }
}

/// n 8 x 8 matrices of 16-bit elements, transposed in place: lane i brings the elements 2 (i % 4) and the next of row i / 4,
/// and receives those of column i / 4.
/// @param[in,out] pairs [n]
template <int n>
__device__ inline void transpose_matrices(std::uint32_t* pairs) {
  TREE_ATTN_UNROLL
  for (int j = 0; j < n; ++j) asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(pairs[j]));
}

/// c_j <- c_j + a_j b_0 + .. + a_j b_{m-1} for j < n, with a_j [16, 16], b_i [16, 8], c_j [16, 8]; a and b of type T, c and
/// the products of F32, each summed in no order that anybody promises. With g = lane / 4 and t = 2 (lane % 4): c holds
/// (g, t), (g, t + 1), (g + 8, t), (g + 8, t + 1); the pairs of a start at (g, t), (g + 8, t), (g, t + 8), (g + 8, t + 8);
/// the pairs of b at rows t and t + 8 of column g.
/// @param[in,out] c [n][4] @param[in] b [m][2]
template <class T, int m = 1, int n>
__device__ inline void mma_16x8x16(float (*c)[4], const std::uint32_t (&a)[n][4], const std::uint32_t (*b)[2]) {
  TREE_ATTN_UNROLL
  for (int i = 0; i < m; ++i) {
    TREE_ATTN_UNROLL
    for (int j = 0; j < n; ++j) {
      if constexpr (std::is_same_v<T, Half>) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
            "%3};"
            : "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
            : "r"(a[j][0]), "r"(a[j][1]), "r"(a[j][2]), "r"(a[j][3]), "r"(b[i][0]), "r"(b[i][1]));
      } else {
        static_assert(std::is_same_v<T, BFloat16>);
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
            "%3};"
            : "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
            : "r"(a[j][0]), "r"(a[j][1]), "r"(a[j][2]), "r"(a[j][3]), "r"(b[i][0]), "r"(b[i][1]));
      }
    }
  }
}

}  // namespace tree_attn::cuda
