// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 9.3: the sum of a block, by shuffles and shared memory.
///
/// Hint: Each thread adds every 128th number of its part. Five shuffles by 16, 8, 4, 2, 1 add a warp, lane 0 of each
/// leaves its sum in shared memory, and a barrier stands before thread 0 reads the four.
#pragma once

#include "notebooks_cpp/exercises/puzzle.hpp"

/// sums[b] = the sum of x_i for 1000 b <= i < min(n, 1000 (b + 1)), where b is the block. The launch gives 16 bytes of
/// shared memory. Words: __shfl_xor_sync(), Arena, __syncthreads().
inline __global__ void block_sum(const float* x, int n, float* sums) {
  Arena arena;
  const Shared<float> of_warp = arena.take<float>(4);
  const int first = static_cast<int>(blockIdx.x) * 1000, end = first + 1000 < n ? first + 1000 : n;
  const int thread = static_cast<int>(threadIdx.x);
  float sum = 0;
  for (int i = first + thread; i < end; i += 128) sum += load_once(x + i);
  for (int flip = 16; flip > 0; flip /= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, flip);
  if (thread % 32 == 0) of_warp[thread / 32] = sum;
  // What another warp has written is read after a barrier.
  __syncthreads();
  if (thread == 0) store_fresh(sums + blockIdx.x, (of_warp[0] + of_warp[1]) + (of_warp[2] + of_warp[3]));
}
