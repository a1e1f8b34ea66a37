// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 9.7: a producer and its consumers: mbarriers.
///
/// Expected: Thread 64 copies tiles of 64 numbers into a ring of two places, and threads 0 to 63 add them. A full barrier
/// per place says that a tile has arrived; an empty barrier says that all consumers have read it. The parity of a wait is
/// that of the round.
///
/// Run: ./run exercise 9.7
#include "notebooks_cpp/exercises/puzzle.hpp"

#include <string>
#include <vector>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/9_7_mbarriers.hpp"
#else

// Change from here ...
/// out[i] = the sum over all tiles of element 63 - i, i < 64, by a block of 96 threads. x is [n_tiles][64]. Words: Arena,
/// Barrier, barrier_init(barrier, arrivals), barrier_fence_init(), __syncthreads(), barrier_arrive_expect(barrier, bytes),
/// bulk_copy(to, from, bytes, barrier), barrier_wait(barrier, parity), barrier_arrive(barrier).
inline __global__ void stream(const float* x, int n_tiles, float* out) {
  // Without any barrier.
  Arena arena;
  const Shared<float> ring = arena.take<float>(2 * 64);
  const int i = static_cast<int>(threadIdx.x);
  if (n_tiles > 0 && i < 64) ring[i] = load_once(x + i);
  if (i < 64) store_fresh(out + i, ring[63 - i]);
}
// ... to here.

#endif

int main() {
  for (const int n_tiles : {1, 2, 5, 8}) {
    const std::vector<float> x = numbers(64 * n_tiles, 10);
    std::vector<float> want(64, 0.0f);
    for (int i = 0; i < 64 * n_tiles; ++i) want[std::size_t(63 - i % 64)] += x[std::size_t(i)];
    under_seeds(6, [&] {
      const DeviceBuffer<float> in = on_device(x);
      DeviceBuffer<float> out(64);
      out.fill(0xFF);
      launch(stream, {.block = {96}, .shared_bytes = 2 * 256 + 256}, Stream{}, in.data(), n_tiles, out.data());
      expect_equal(out.download(), want, "the sums of " + std::to_string(n_tiles) + " tiles");
    });
  }
  return result();
}
