// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 9.2: two vectors.
///
/// Hint: The index of a thread is blockIdx.x * blockDim.x + threadIdx.x. The last block has threads without an element:
/// they may read nothing.
#pragma once

#include "notebooks_cpp/exercises/puzzle.hpp"

/// c_i = a_i + b_i for i < n, one thread per element. Words: blockIdx, blockDim, threadIdx, load_once(), store_fresh().
inline __global__ void add(const float* a, const float* b, float* c, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  store_fresh(c + i, load_once(a + i) + load_once(b + i));
}
