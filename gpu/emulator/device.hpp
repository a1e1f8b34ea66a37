// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The emulated side of gpu/platform/device.hpp: functions of CUDA and the wrappers of gpu/platform/cuda/device.hpp,
/// run by fibers.
///
/// Every function that can fail has the line of its call as a last, defaulted argument, for the report.
#pragma once

#include "gpu/emulator/coordinates.hpp"
#include "gpu/emulator/global_memory.hpp"
#include "gpu/emulator/runtime.hpp"
#include "gpu/emulator/shared.hpp"
#include "gpu/emulator/tensor_map.hpp"
#include "gpu/types/bytes16.hpp"
#include "gpu/types/cache_hint.hpp"
#include "gpu/types/packet.hpp"
#include "gpu/types/platform.hpp"

#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__

#define threadIdx (::tree_attn::emulated::runtime::running_coordinates->thread)
#define blockIdx (::tree_attn::emulated::runtime::running_coordinates->block)
#define blockDim (::tree_attn::emulated::runtime::running_coordinates->block_extent)
#define gridDim (::tree_attn::emulated::runtime::running_coordinates->grid_extent)

namespace tree_attn::emulated {

namespace runtime {

/// Shuffles a value of 4 or 8 bytes.
template <class T>
T shuffle_value(unsigned mask, T value, unsigned from, const char* word, const Line& line) {
  static_assert((sizeof(T) == 4 || sizeof(T) == 8) && std::is_trivially_copyable_v<T>);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = shuffle(mask, bits, from, word, line);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <class T>
void check_aligned16(const T* at, const char* word, const Line& line) {
  if (reinterpret_cast<std::uintptr_t>(at) % 16 != 0)
    fail(line, std::string(word) + ": the address is not a multiple of 16");
}

}  // namespace runtime

// ---- Functions of CUDA

inline void __syncthreads(const Line& line = Line::current()) { runtime::meet_block(line); }
inline void sync_neighbours(int n, const Line& line = Line::current()) { runtime::meet_neighbours(n, line); }
inline void __syncwarp(unsigned mask = 0xFFFFFFFF, const Line& line = Line::current()) { runtime::meet_warp(mask, line); }

/// The value of lane `from` of every `width` lanes.
template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32, const Line& line = Line::current()) {
  const unsigned within = static_cast<unsigned>(width) - 1;
  return runtime::shuffle_value(mask, value, (runtime::lane() & ~within) | (static_cast<unsigned>(from) & within),
                                "__shfl_sync", line);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int flip, int width = 32, const Line& line = Line::current()) {
  const unsigned own = runtime::lane(), from = own ^ static_cast<unsigned>(flip);
  // Reading from a lane of another group returns the lane's own value.
  const bool reaches = from < (own & ~(static_cast<unsigned>(width) - 1)) + static_cast<unsigned>(width);
  return runtime::shuffle_value(mask, value, reaches ? from : own, "__shfl_xor_sync", line);
}
inline unsigned __ballot_sync(unsigned mask, int yes, const Line& line = Line::current()) {
  return runtime::ballot(mask, yes != 0, "__ballot_sync", line);
}
inline int __any_sync(unsigned mask, int yes, const Line& line = Line::current()) {
  return runtime::ballot(mask, yes != 0, "__any_sync", line) != 0;
}
inline int __all_sync(unsigned mask, int yes, const Line& line = Line::current()) {
  return runtime::ballot(mask, yes != 0, "__all_sync", line) == mask;
}

inline int __popc(unsigned bits) { return std::popcount(bits); }

/// On global memory. It orders nothing.
template <class T>
T atomicAdd(T* to, std::type_identity_t<T> add, const Line& line = Line::current()) {
  static_assert(std::is_same_v<T, int> || std::is_same_v<T, unsigned>);
  runtime::check_global(to, sizeof *to, runtime::Reach::kAtomic, "atomicAdd", line);
  return __atomic_fetch_add(to, add, __ATOMIC_RELAXED);
}

/// A counter in global memory: 0, 1, ..., last, 0, ... TSan knows the two orders of the C++ atomic.
inline unsigned atomic_inc_acq_rel(unsigned* counter, unsigned last, const Line& line = Line::current()) {
  runtime::check_global(counter, sizeof *counter, runtime::Reach::kAtomic, "atomic_inc_acq_rel", line);
  unsigned before = __atomic_load_n(counter, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(counter, &before, before >= last ? 0 : before + 1, false, __ATOMIC_ACQ_REL,
                                      __ATOMIC_RELAXED)) {
  }
  return before;
}

// ---- Arithmetic that is rounded as written: this file is compiled with -ffp-contract=off

inline int opaque(int x) { return x; }
template <class T>
T* opaque(T* x) {
  return x;
}
/// 2^x by the host's library, which is closer than the device's; what is below 2^-126 is 0 on both.
inline float exp2_flushed(float x) {
  const float power = std::exp2(x);
  return power < std::numeric_limits<float>::min() ? 0.0f : power;
}
inline float multiply(float a, float b) { return a * b; }
inline std::uint32_t multiply_pairs(std::uint32_t a, std::uint32_t b) {
  const auto product = [](std::uint32_t x, std::uint32_t y) {
    return std::uint32_t{narrow<BFloat16>(float_of(x << 16) * float_of(y << 16)).bits};
  };
  return product(a & 0xFFFF, b & 0xFFFF) | product(a >> 16, b >> 16) << 16;
}
inline float fused_multiply_add(float a, float b, float c) { return std::fma(a, b, c); }

// ---- Loads and stores

/// 16 bytes of shared memory, at a multiple of 16.
template <class T>
Bytes16 load16(Shared<T> from, const Line& line = Line::current()) {
  const auto* const at = runtime::plain<runtime::Access::kRead>(from, 16, line);
  runtime::check_aligned16(at, "load16", line);
  Bytes16 bytes;
  std::memcpy(&bytes, at, sizeof bytes);
  return bytes;
}
template <class T>
void store16(Shared<T> to, const Bytes16& bytes, const Line& line = Line::current()) {
  auto* const at = runtime::plain<runtime::Access::kWrite>(to, 16, line);
  runtime::check_aligned16(at, "store16", line);
  std::memcpy(at, &bytes, sizeof bytes);
}

namespace runtime {

inline Bytes16 load_global16(const void* from, Reach reach, const char* word, const Line& line) {
  check_global(from, 16, reach, word, line);
  check_aligned16(from, word, line);
  Bytes16 bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return bytes;
}

}  // namespace runtime

/// 16 bytes of global memory that no kernel writes.
inline Bytes16 load16_global(const void* from, const Line& line = Line::current()) {
  return runtime::load_global16(from, runtime::Reach::kReadOnly, "load16_global", line);
}
/// One number of global memory that no kernel writes.
template <class T>
T load_once(const T* from, const Line& line = Line::current()) {
  runtime::check_global(from, sizeof(T), runtime::Reach::kReadOnly, "load_once", line);
  return *from;
}
/// One number of 4 bytes that another block may have written in this launch.
template <class T>
T load_fresh(const T* from, const Line& line = Line::current()) {
  static_assert(sizeof(T) == 4);
  runtime::check_global(from, sizeof(T), runtime::Reach::kRead, "load_fresh", line);
  return *from;
}
/// One number for load_fresh(), in this launch.
template <class T>
void store_fresh(T* to, std::type_identity_t<T> x, const Line& line = Line::current()) {
  static_assert(sizeof(T) == 4);
  runtime::check_global(to, sizeof(T), runtime::Reach::kWrite, "store_fresh", line);
  *to = x;
}
/// Loads and stores 16 bytes in this way, at a multiple of 16.
inline Bytes16 load_fresh16(const float* from, const Line& line = Line::current()) {
  return runtime::load_global16(from, runtime::Reach::kRead, "load_fresh16", line);
}
inline void store_fresh16(float* to, const Bytes16& bytes, const Line& line = Line::current()) {
  runtime::check_global(to, 16, runtime::Reach::kWrite, "store_fresh16", line);
  runtime::check_aligned16(to, "store_fresh16", line);
  std::memcpy(to, &bytes, sizeof bytes);
}

// ---- Waiting for memory that others write

/// Calls ready() until it is true. Meanwhile other threads, blocks and devices run; this block stays resident.
template <class Ready>
void wait_until(const Ready& ready, const Line& line = Line::current()) {
  bool waited = false;
  for (; !ready(); waited = true) runtime::wait_for_memory(line);
  if (waited) runtime::pass_wait();
}
/// A word by which the host, or threads that run at the same time, tell others something.
inline unsigned load_acquire(const unsigned* from, const Line& line = Line::current()) {
  runtime::check_global(from, sizeof *from, runtime::Reach::kRead, "load_acquire", line);
  return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}

// ---- Windows: memory that other devices store to

/// A packet into a window of any device; it arrives at any time, as a whole.
inline void store_packet(Packet* to, const Packet& packet, const Line& line = Line::current()) {
  runtime::check_global(to, sizeof packet, runtime::Reach::kWrite, "store_packet", line);
  runtime::check_aligned16(to, "store_packet", line);
  runtime::store_late(to, packet);
}
inline Packet load_packet(const Packet* from, const Line& line = Line::current()) {
  runtime::check_global(from, sizeof *from, runtime::Reach::kRead, "load_packet", line);
  runtime::check_aligned16(from, "load_packet", line);
  return runtime::load_whole(from);
}

/// Time in nanoseconds since some moment: real time, so only the end of a wait by timeout may depend on it.
inline std::uint64_t nanoseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

// ---- Asynchronous copies

template <class T>
void copy_async16(Shared<T> to, const void* from, int n_bytes, const Line& line = Line::current()) {
  runtime::copy_async16(reinterpret_cast<std::byte*>(runtime::plain<runtime::Access::kBoundsOnly>(to, 16, line)), from,
                        n_bytes, line);
}
inline void copy_async_commit() { runtime::copy_async_commit(); }
template <int kPending>
void copy_async_wait() {
  runtime::copy_async_wait(kPending);
}

// ---- Bulk copies completing on an mbarrier

/// An mbarrier in shared memory.
struct Barrier {
  std::uint64_t word;
};
inline std::uint64_t* word_of(Shared<Barrier> barrier, const Line& line) {
  return &runtime::plain<runtime::Access::kBoundsOnly>(barrier, 8, line)->word;
}

inline void barrier_init(Shared<Barrier> barrier, int count, const Line& line = Line::current()) {
  runtime::barrier_init(word_of(barrier, line), count, line);
}
inline void barrier_fence_init() { runtime::barrier_fence_init(); }
/// Lane 0.
inline bool elect_one(const Line& line = Line::current()) {
  runtime::meet_warp(0xFFFFFFFF, line);
  return runtime::lane() == 0;
}
inline void async_proxy_fence() { runtime::async_proxy_fence(); }
inline void barrier_arrive(Shared<Barrier> barrier, const Line& line = Line::current()) {
  runtime::barrier_arrive(word_of(barrier, line), 0, line);
}
inline void barrier_arrive_expect(Shared<Barrier> barrier, int n_bytes, const Line& line = Line::current()) {
  runtime::barrier_arrive(word_of(barrier, line), n_bytes, line);
}
inline void barrier_wait(Shared<Barrier> barrier, int parity, const Line& line = Line::current()) {
  runtime::barrier_wait(word_of(barrier, line), parity, line);
}
template <class T>
void bulk_copy(Shared<T> to, const void* from, int n_bytes, Shared<Barrier> barrier, CacheHint = CacheHint::Normal,
               const Line& line = Line::current()) {
  runtime::bulk_copy(reinterpret_cast<std::byte*>(runtime::plain<runtime::Access::kBoundsOnly>(to, n_bytes, line)), from,
                     n_bytes, word_of(barrier, line), line);
}

/// A box of an array, see gpu/platform/cuda/device.hpp.
template <class T, class U>
void bulk_copy_tensor(Shared<U> to, const TensorMap& map, int column, int row, int head, int entry, Shared<Barrier> barrier,
                      CacheHint = CacheHint::Normal, const Line& line = Line::current()) {
  runtime::bulk_copy_tensor(
      reinterpret_cast<std::byte*>(runtime::plain<runtime::Access::kBoundsOnly>(to, map.array.box_bytes(), line)),
      {map.array, {entry, head, row, column}}, DTypeTraits<T>::kDType, word_of(barrier, line), line);
}
/// A box that goes to several blocks of the cluster. @param ranks bit r: to block r
template <class T, class U>
void bulk_copy_tensor_to(unsigned ranks, Shared<U> to, const TensorMap& map, int column, int row, int head, int entry,
                         Shared<Barrier> barrier, const Line& line = Line::current()) {
  runtime::bulk_copy_tensor(
      reinterpret_cast<std::byte*>(runtime::plain<runtime::Access::kBoundsOnly>(to, map.array.box_bytes(), line)),
      {map.array, {entry, head, row, column}}, DTypeTraits<T>::kDType, word_of(barrier, line), line, ranks);
}

// ---- Launches that overlap

inline void launch_dependents() {}
inline void wait_for_previous_launch() { runtime::wait_for_previous_launch(); }

// ---- Clusters

inline int cluster_rank() { return runtime::cluster_rank(); }
inline void barrier_arrive_at(Shared<Barrier> barrier, int rank, const Line& line = Line::current()) {
  runtime::barrier_arrive_at(word_of(barrier, line), rank, line);
}
inline void cluster_sync(const Line& line = Line::current()) { runtime::meet_cluster(line); }
/// Maps an address to the shared memory of another block of the cluster. The other block must not have ended.
template <class T>
Shared<T> remote(Shared<T> shared, int rank, const Line& line = Line::current()) {
#if defined(TREE_ATTN_EMULATOR_SHADOW)
  return shared.in_block(rank, line);
#else
  return reinterpret_cast<T*>(
      runtime::remote(reinterpret_cast<std::byte*>(const_cast<std::remove_const_t<T>*>(shared)), rank, line));
#endif
}

// ---- Tensor cores; layouts in gpu/platform/cuda/device.hpp

namespace runtime {

/// @param row (i) -> Shared<T>
template <int n, class Row>
void load_rows(std::uint32_t (&out)[n][4], const Row& row, bool transposed, const char* word, const Line& line) {
  const void* rows[n];
  for (int i = 0; i < n; ++i) {
    rows[i] = plain<Access::kRead>(row(i), 16, line);
    check_aligned16(rows[i], word, line);
  }
  load_matrices(out, rows, n, transposed, word, line);
}

}  // namespace runtime

template <int n, class Row>
void load_matrices_x4(std::uint32_t (&out)[n][4], const Row& row, const Line& line = Line::current()) {
  runtime::load_rows(out, row, false, "load_matrices_x4", line);
}
template <int n, class Row>
void load_matrices_x4_transposed(std::uint32_t (&out)[n][4], const Row& row, const Line& line = Line::current()) {
  runtime::load_rows(out, row, true, "load_matrices_x4_transposed", line);
}
template <int n>
void transpose_matrices(std::uint32_t* pairs, const Line& line = Line::current()) {
  runtime::transpose_matrices(pairs, n, line);
}
template <class T, int m = 1, int n>
void mma_16x8x16(float (*c)[4], const std::uint32_t (&a)[n][4], const std::uint32_t (*b)[2],
                 const Line& line = Line::current()) {
  static_assert(DTypeTraits<T>::kCores == KernelCores::TensorCores && sizeof(T) == 2);
  runtime::multiply_matrices<T, m>(c, a, n, b, line);
}

}  // namespace tree_attn::emulated
