// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 9.3: the sum of a block, by shuffles and shared memory.
///
/// Expected: A block of 128 threads adds the numbers of its part: every lane some of them, five shuffles within a warp, and
/// the four warps through shared memory.
///
/// Run: ./run exercise 9.3
#include "notebooks_cpp/exercises/puzzle.hpp"

#include <string>
#include <vector>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/9_3_block_sum.hpp"
#else

// Change from here ...
/// sums[b] = the sum of x_i for 1000 b <= i < min(n, 1000 (b + 1)), where b is the block. The launch gives 16 bytes of
/// shared memory. Words: __shfl_xor_sync(), Arena, __syncthreads().
inline __global__ void block_sum(const float* x, int n, float* sums) {
  // Only what the first thread finds first.
  if (threadIdx.x == 0 && n > 0) store_fresh(sums + blockIdx.x, load_once(x));
}
// ... to here.

#endif

int main() {
  for (const int n : {1, 127, 1000, 2500}) {
    const int n_blocks = (n + 999) / 1000;
    const std::vector<float> x = numbers(n, 3);
    std::vector<float> want(std::size_t(n_blocks), 0.0f);
    for (int i = 0; i < n; ++i) want[std::size_t(i / 1000)] += x[std::size_t(i)];
    under_seeds(4, [&] {
      const DeviceBuffer<float> in = on_device(x);
      DeviceBuffer<float> sums(n_blocks);
      sums.fill(0xFF);
      launch(block_sum, {.grid = {unsigned(n_blocks)}, .block = {128}, .shared_bytes = 16}, Stream{}, in.data(), n,
             sums.data());
      expect_equal(sums.download(), want, "the sums of " + std::to_string(n) + " whole numbers");
    });
  }
  return result();
}
