// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 9.10: the last block adds what all blocks have left.
///
/// Hint: Lane 0 stores the sum of its block and then increments the counter, which releases the store. The block that
/// reads blocks - 1 is the last, and adds all sums in their order.
#pragma once

#include "notebooks_cpp/exercises/puzzle.hpp"

/// out[0] = (.. (sum_0 + sum_1) + ..) + sum_(blocks - 1), with sum_b the butterfly over the 32 numbers of block b. Words:
/// store_fresh(), load_fresh(), atomic_inc_acq_rel(counter, last), which returns the count before and wraps to 0 after
/// last; __shfl_xor_sync(), __shfl_sync(), __syncwarp().
inline __global__ void add_all(const float* x, float* sums, unsigned* counter, float* out) {
  float sum = load_once(x + blockIdx.x * 32 + threadIdx.x);
  for (int flip = 16; flip > 0; flip /= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, flip);
  if (threadIdx.x != 0) return;
  store_fresh(sums + blockIdx.x, sum);
  // The increment releases the store before it, and acquires those of all blocks that counted before.
  if (atomic_inc_acq_rel(counter, gridDim.x - 1) != gridDim.x - 1) return;
  float all = load_fresh(sums);
  for (unsigned b = 1; b < gridDim.x; ++b) all += load_fresh(sums + b);
  store_fresh(out, all);
}
