// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 9.11: blocks that read each other's shared memory: a cluster.
///
/// Expected: Four blocks form a cluster. Each has a part of the numbers in its shared memory, and block r of the cluster
/// adds quarter r of all four: a reduce-scatter without global memory. No block reads before the others have written, and
/// none ends while another reads.
///
/// Run: ./run exercise 9.11
#include "notebooks_cpp/exercises/puzzle.hpp"

#include <vector>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/9_11_cluster.hpp"
#else

// Change from here ...
/// out[32 r + i] = the sum over the four blocks b of x[b][32 r + i], where r is the rank of this block and i its thread; x
/// is [4][128], blocks have 32 threads and 512 bytes of shared memory. Add in the order of b. Words: Arena, cluster_rank(),
/// cluster_sync(), remote(shared, rank).
inline __global__ void reduce_scatter(const float* x, float* out) {
  // Only this block's part.
  const int i = 32 * cluster_rank() + static_cast<int>(threadIdx.x);
  store_fresh(out + i, load_once(x + 128 * cluster_rank() + i));
}
// ... to here.

#endif

int main() {
  const std::vector<float> x = numbers(4 * 128, 14);
  std::vector<float> want(128, 0.0f);
  for (int i = 0; i < 4 * 128; ++i) want[std::size_t(i % 128)] += x[std::size_t(i)];
  under_seeds(8, [&] {
    const DeviceBuffer<float> in = on_device(x);
    DeviceBuffer<float> out(128);
    out.fill(0xFF);
    launch(reduce_scatter, {.grid = {4}, .block = {32}, .shared_bytes = 512, .cluster = 4}, Stream{}, in.data(), out.data());
    expect_equal(out.download(), want, "the sums over the cluster");
  });
  return result();
}
