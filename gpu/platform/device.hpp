// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Vocabulary of kernels: the words of CUDA, and a wrapper for each instruction that has none (section 5).
///
/// Kernels include this file and no other header of a platform. nvcc finds the device side, gpu/platform/cuda:
/// wrappers of one instruction each. g++ finds the twin, gpu/emulator/device.hpp: the same names, run by fibers.
/// Kernels live in the namespace of their platform, tree_attn::cuda or tree_attn::emulated, so that one program can hold
/// both.
///
/// | word | meaning |
/// | --- | --- |
/// | `threadIdx blockIdx blockDim gridDim` | CUDA's own |
/// | `__syncthreads __syncwarp atomicAdd` | CUDA's own |
/// | `sync_neighbours` | a barrier of every n neighbouring threads of a block, whole warps |
/// | `__shfl_sync __shfl_xor_sync __ballot_sync __any_sync __all_sync __popc` | CUDA's own |
/// | `Shared<T>` | pointer into the shared memory of this block; a plain `T*` on the device |
/// | `Arena` | hands out dynamic shared memory: `arena.take<float>(n)`, or `arena.take<float>(n, alignment)` |
/// | `shared_as<U>` | the same shared memory as elements of another type |
/// | `load16 store16` | 16 bytes of shared memory at once; the address is a multiple of 16 |
/// | `load16_global load_once` | 16 bytes of read-only global memory; one element of it |
/// | `load_fresh store_fresh load_fresh16 store_fresh16` | one element of global memory, or 16 bytes, that other threads or operations write, or read |
/// | `atomic_inc_acq_rel` | a counter in global memory that wraps to zero, with acquire and release |
/// | `wait_until load_acquire` | waits for memory that other blocks, launches or devices write; a word that says so |
/// | `store_packet load_packet` | a store into a window of another device: a Packet of 16 bytes, which arrives as a whole |
/// | `nanoseconds` | time, for waits that give up |
/// | `copy_async16 copy_async_commit copy_async_wait` | asynchronous copies from global to shared memory, in groups |
/// | `Barrier barrier_init barrier_arrive barrier_arrive_expect` | an mbarrier in shared memory |
/// | `barrier_wait bulk_copy` | bulk copies that complete on an mbarrier |
/// | `TensorMap bulk_copy_tensor swizzled_unit` | boxes of a strided array, swizzled, completing on an mbarrier |
/// | `launch_dependents wait_for_previous_launch` | launches on a stream that overlap |
/// | `cluster_rank cluster_sync remote barrier_arrive_at bulk_copy_tensor_to` | blocks of a cluster, each other's memory and barriers, boxes for several |
/// | `load_matrices_x4 load_matrices_x4_transposed transpose_matrices mma_16x8x16` | tensor cores, several matrices a word |
/// | `BoxMatrix box_matrix store_matrices_x4_transposed` | matrices in shared memory as wgmma takes them, and their way there |
/// | `wgmma_64xNx16 wgmma_of_registers_64xNx16 wgmma_fence wgmma_commit wgmma_wait` | products of a warpgroup, which go on by themselves: 9.0 |
/// | `elect_one async_proxy_fence` | one lane of a warp; writes to shared memory before bulk copies to it |
/// | `multiply fused_multiply_add multiply_pairs` | rounded as written: no compiler may contract or split them; two of BF16 |
/// | `exp2_flushed` | 2^x, 0 below 2^-126: ex2.approx.ftz on a GPU, std::exp2 in the emulator, with other bits |
#pragma once

#if defined(__CUDACC__)
#include "gpu/platform/cuda/device.hpp"
#include "gpu/platform/cuda/wgmma.hpp"
#else
#include "gpu/emulator/device.hpp"
#include "gpu/emulator/wgmma.hpp"
#endif
