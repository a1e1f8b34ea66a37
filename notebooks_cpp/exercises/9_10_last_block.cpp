// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 9.10: the last block adds what all blocks have left.
///
/// Expected: Every block leaves the sum of its 32 numbers in scratch memory and counts itself; the block that counts last
/// adds all of them, from the first to the last. So the order of blocks changes no bit, and the counter is 0 for the next
/// launch.
///
/// Run: ./run exercise 9.10
#include "notebooks_cpp/exercises/puzzle.hpp"

#include <string>
#include <vector>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/9_10_last_block.hpp"
#else

// Change from here ...
/// out[0] = (.. (sum_0 + sum_1) + ..) + sum_(blocks - 1), with sum_b the butterfly over the 32 numbers of block b. Words:
/// store_fresh(), load_fresh(), atomic_inc_acq_rel(counter, last), which returns the count before and wraps to 0 after
/// last; __shfl_xor_sync(), __shfl_sync(), __syncwarp().
inline __global__ void add_all(const float* x, float* sums, unsigned* counter, float* out) {
  // Every block believes that it is the last.
  (void)x, (void)counter;
  if (threadIdx.x != 0) return;
  float sum = 0;
  for (unsigned b = 0; b < gridDim.x; ++b) sum += load_fresh(sums + b);
  store_fresh(out, sum);
}
// ... to here.

#endif

int main() {
  for (const int n_blocks : {1, 2, 20}) {
    std::vector<float> x = numbers(32 * n_blocks, 13);
    for (float& each : x) each /= 7;
    float want = 0;
    for (int b = 0; b < n_blocks; ++b) {
      std::vector<float> lanes(x.begin() + 32 * b, x.begin() + 32 * (b + 1));
      for (std::size_t width = 16; width > 0; width /= 2)
        for (std::size_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
      want = b == 0 ? lanes[0] : want + lanes[0];
    }
    under_seeds(6, [&] {
      const DeviceBuffer<float> in = on_device(x);
      DeviceBuffer<float> sums(n_blocks, MemoryUse::Scratch), out(1);
      DeviceBuffer<unsigned> counter(1);
      counter.fill(0);
      for (int trial = 0; trial < 2; ++trial) {
        out.fill(0xFF);
        launch(add_all, {.grid = {unsigned(n_blocks)}, .block = {32}}, Stream{}, in.data(), sums.data(), counter.data(),
               out.data());
        expect_bits(out.download()[0], want, "the bits of the sum of " + std::to_string(n_blocks) + " blocks");
        expect_equal(counter.download()[0], 0, "the counter is 0 for the next launch");
      }
    });
  }
  return result();
}
