// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 9.7: a producer and its consumers: mbarriers.
///
/// Hint: Two barriers for each place of the ring: one tells that it is full, one that all 64 consumers have read it. The
/// parity of round n of a place is n % 2; the producer waits for `empty` from the second round on.
#pragma once

#include "notebooks_cpp/exercises/puzzle.hpp"

/// out[i] = the sum over all tiles of element 63 - i, i < 64, by a block of 96 threads. x is [n_tiles][64]. Words: Arena,
/// Barrier, barrier_init(barrier, arrivals), barrier_fence_init(), __syncthreads(), barrier_arrive_expect(barrier, bytes),
/// bulk_copy(to, from, bytes, barrier), barrier_wait(barrier, parity), barrier_arrive(barrier).
inline __global__ void stream(const float* x, int n_tiles, float* out) {
  Arena arena;
  const Shared<float> ring = arena.take<float>(2 * 64);
  const Shared<Barrier> full = arena.take<Barrier>(2), empty = arena.take<Barrier>(2);
  const int i = static_cast<int>(threadIdx.x);
  if (i == 0) {
    for (int place = 0; place < 2; ++place) barrier_init(full + place, 1), barrier_init(empty + place, 64);
    barrier_fence_init();
  }
  __syncthreads();
  float sum = 0;
  for (int tile = 0; tile < n_tiles; ++tile) {
    const int place = tile % 2, round = tile / 2;
    if (i == 64) {
      if (round > 0) barrier_wait(empty + place, (round - 1) % 2);
      barrier_arrive_expect(full + place, 256);
      bulk_copy(ring + 64 * place, x + 64 * tile, 256, full + place);
    } else if (i < 64) {
      barrier_wait(full + place, round % 2);
      sum += ring[64 * place + 63 - i];
      barrier_arrive(empty + place);
    }
  }
  if (i < 64) store_fresh(out + i, sum);
}
