// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Functions of the emulator that device.hpp calls. The caller is always the running thread.
#pragma once

#include "gpu/emulator/coordinates.hpp"
#include "gpu/types/packet.hpp"
#include "gpu/types/tensor_array.hpp"

#include <cstddef>
#include <cstdint>

namespace tree_attn::emulated::runtime {

/// Access of a function to shared memory. kBoundsOnly: only the bounds are checked, for the destination of a copy or where
/// the function checks the access itself.
enum class Access { kRead, kWrite, kBoundsOnly };

/// Barriers of a block and of a cluster; of some lanes of a warp.
void meet_block(const Line& line);
void meet_neighbours(int n, const Line& line);
void meet_cluster(const Line& line);
void meet_warp(unsigned mask, const Line& line);

/// Every lane of the mask gives a value and the lane it wants one from.
std::uint64_t shuffle(unsigned mask, std::uint64_t value, unsigned from_lane, const char* word, const Line& line);
unsigned lane();
/// Bit i: lane i is in the mask and said yes.
unsigned ballot(unsigned mask, bool yes, const char* word, const Line& line);

/// Tensor cores: n times four matrices from shared memory, four to it, n matrices in place, and c_j <- c_j + a_j b_i for j <
/// n and i < m.
void load_matrices(std::uint32_t (*out)[4], const void* const* rows, int n, bool transposed, const char* word,
                   const Line& line);
void store_matrices(void* row, const std::uint32_t (&in)[4], const Line& line);
void transpose_matrices(std::uint32_t* pairs, int n, const Line& line);
/// @tparam T what a and b hold, two elements in each register
template <class T, int m>
void multiply_matrices(float (*c)[4], const std::uint32_t (*a)[4], int n, const std::uint32_t (*b)[2], const Line& line);

/// The n-th piece of shared memory of this block, the same for every thread.
std::byte* take(int n, std::size_t n_bytes, std::size_t alignment, const Line& line);
/// Maps an address to the shared memory of another block of the cluster.
std::byte* remote(std::byte* own, int rank, const Line& line);
int cluster_rank();

/// Asynchronous copies of 16 bytes, of which n_bytes come from global memory and the others are zero.
void copy_async16(std::byte* to, const void* from, int n_bytes, const Line& line);
void copy_async_commit();
void copy_async_wait(int n_pending);

/// mbarriers; `word` is what the kernel has in its shared memory.
void barrier_init(std::uint64_t* word, int count, const Line& line);
void barrier_fence_init();
void async_proxy_fence();
void barrier_arrive(std::uint64_t* word, int n_bytes, const Line& line);
/// An arrival in another block of the cluster.
void barrier_arrive_at(std::uint64_t* word, int rank, const Line& line);
void barrier_wait(std::uint64_t* word, int parity, const Line& line);
void bulk_copy(std::byte* to, const void* from, int n_bytes, std::uint64_t* word, const Line& line);

/// A box of an array, and its first entry, head, position and element, anywhere.
struct TensorBox {
  TensorArray array;
  int first[4];
};
/// @param dtype that the kernel takes the array for @param ranks blocks of the cluster that it goes to; 0: this one
void bulk_copy_tensor(std::byte* to, const TensorBox& box, DType dtype, std::uint64_t* word, const Line& line,
                      unsigned ranks = 0);

/// Lets others run until they may have written what the running thread waits for; the end of such a wait.
void wait_for_memory(const Line& line);
void pass_wait();

/// Sends a packet on its way, see far_stores.cpp; and reads one, in one access.
void store_late(Packet* to, const Packet& packet);
Packet load_whole(const Packet* from);

/// From here on the running thread may touch what the launch before this one used.
void wait_for_previous_launch();

}  // namespace tree_attn::emulated::runtime
