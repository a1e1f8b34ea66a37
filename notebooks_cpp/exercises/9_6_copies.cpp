// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 9.6: copies under way while a warp adds: cp.async.
///
/// Expected: A warp adds tiles of 512 bytes that it copies into a ring of three places: while it adds one tile, the next
/// two are under way. No place is read before its copy has arrived, and none overwritten before every lane has read it.
///
/// Run: ./run exercise 9.6
#include "notebooks_cpp/exercises/puzzle.hpp"

#include <string>
#include <vector>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/9_6_copies.hpp"
#else

// Change from here ...
/// out[i] = the sum over all tiles of element 127 - i, i < 128. x is [n_tiles][128], and the launch gives shared memory for
/// three tiles. Words: Arena, copy_async16(to, from, 16), copy_async_commit(), copy_async_wait<groups that may be under
/// way>(), __syncwarp().
inline __global__ void add_tiles(const float* x, int n_tiles, float* out) {
  // Adds what has not arrived.
  Arena arena;
  const Shared<float> ring = arena.take<float>(3 * 128);
  const int lane = static_cast<int>(threadIdx.x);
  if (n_tiles > 0) copy_async16(ring + 4 * lane, x + 4 * lane, 16);
  for (int i = lane; i < 128; i += 32) store_fresh(out + i, ring[127 - i]);
}
// ... to here.

#endif

int main() {
  for (const int n_tiles : {1, 2, 3, 10}) {
    const std::vector<float> x = numbers(128 * n_tiles, 9);
    std::vector<float> want(128, 0.0f);
    for (int i = 0; i < 128 * n_tiles; ++i) want[std::size_t(127 - i % 128)] += x[std::size_t(i)];
    under_seeds(6, [&] {
      const DeviceBuffer<float> in = on_device(x);
      DeviceBuffer<float> out(128);
      out.fill(0xFF);
      launch(add_tiles, {.block = {32}, .shared_bytes = 3 * 512}, Stream{}, in.data(), n_tiles, out.data());
      expect_equal(out.download(), want, "the sums of " + std::to_string(n_tiles) + " tiles");
    });
  }
  return result();
}
