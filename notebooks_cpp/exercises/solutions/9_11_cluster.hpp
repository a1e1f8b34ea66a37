// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 9.11: blocks that read each other's shared memory: a cluster.
///
/// Hint: A barrier of the cluster stands before the first read of another block's memory, and a second one before any
/// block may end.
#pragma once

#include "notebooks_cpp/exercises/puzzle.hpp"

/// out[32 r + i] = the sum over the four blocks b of x[b][32 r + i], where r is the rank of this block and i its thread; x
/// is [4][128], blocks have 32 threads and 512 bytes of shared memory. Add in the order of b. Words: Arena, cluster_rank(),
/// cluster_sync(), remote(shared, rank).
inline __global__ void reduce_scatter(const float* x, float* out) {
  Arena arena;
  const Shared<float> own = arena.take<float>(128);
  const int rank = cluster_rank(), thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < 128; i += 32) own[i] = load_once(x + 128 * rank + i);
  cluster_sync();
  float sum = 0;
  for (int b = 0; b < 4; ++b) sum += remote(own, b)[32 * rank + thread];
  store_fresh(out + 32 * rank + thread, sum);
  cluster_sync();
}
