// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 9.2: two vectors.
///
/// Expected: Thread i of the grid adds element i of two vectors. The last block has threads past the end: they must neither
/// read nor write.
///
/// Run: ./run exercise 9.2
#include "notebooks_cpp/exercises/puzzle.hpp"

#include <string>
#include <vector>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/9_2_add.hpp"
#else

// Change from here ...
/// c_i = a_i + b_i for i < n, one thread per element. Words: blockIdx, blockDim, threadIdx, load_once(), store_fresh().
inline __global__ void add(const float* a, const float* b, float* c, int n) {
  // Only the first element.
  if (n > 0) store_fresh(c, load_once(a) + load_once(b));
}
// ... to here.

#endif

int main() {
  for (const int n : {1, 31, 64, 100, 1000}) {
    const std::vector<float> a = numbers(n, 1), b = numbers(n, 2);
    std::vector<float> sums;
    for (int i = 0; i < n; ++i) sums.push_back(a[std::size_t(i)] + b[std::size_t(i)]);
    under_seeds(2, [&] {
      const DeviceBuffer<float> left = on_device(a), right = on_device(b);
      DeviceBuffer<float> out(n);
      out.fill(0xFF);
      launch(add, {.grid = {unsigned(n + 63) / 64}, .block = {64}}, Stream{}, left.data(), right.data(), out.data(), n);
      expect_equal(out.download(), sums, "the sums of " + std::to_string(n) + " elements");
    });
  }
  return result();
}
