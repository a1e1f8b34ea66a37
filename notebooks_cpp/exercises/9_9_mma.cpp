// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 9.9: the scores of 16 keys and 8 queries: mma.
///
/// Expected: A warp multiplies S = K Q^T on tensor cores in two products of 16 x 8 x 16, with registers that it fills from
/// global memory by the layout of the PTX ISA.
///
/// Run: ./run exercise 9.9
#include "notebooks_cpp/exercises/puzzle.hpp"

#include <cstdint>
#include <string>
#include <vector>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/9_9_mma.hpp"
#else

// Change from here ...
/// s[key][query] = k_key . q_query for 16 keys and 8 queries of 32 elements: k is [16][32], q [8][32], s [16][8]. With g =
/// lane / 4 and t = lane % 4, a pair (2 t, 2 t + 1) of columns in a register: left operand, rows g, g + 8, g, g + 8 and
/// columns from 0, 0, 8, 8 on; right operand, which is Q as it lies in memory, row g of Q and columns from 0, 8 on; the
/// product, rows g, g, g + 8, g + 8, columns 2 t, 2 t + 1 twice. Words: load_once(), pack(low, high),
/// mma_16x8x16<BFloat16>(c[1][4], a[1][4], b[1][2]), which adds.
inline __global__ void scores(const BFloat16* k, const BFloat16* q, float* s) {
  // No product.
  (void)k, (void)q;
  for (unsigned i = threadIdx.x; i < 128; i += 32) store_fresh(s + i, 0.0f);
}
// ... to here.

#endif

int main() {
  const auto small = [](int n, unsigned seed) {
    std::vector<BFloat16> elements;
    for (const float x : numbers(n, seed)) elements.push_back(tree_attn::narrow<BFloat16>(x));
    return elements;
  };
  const std::vector<BFloat16> k = small(16 * 32, 11), q = small(8 * 32, 12);
  std::vector<float> want(128, 0.0f);
  for (int i = 0; i < 128; ++i) {
    for (int j = 0; j < 32; ++j)
      want[std::size_t(i)] +=
          tree_attn::widen(k[std::size_t(i / 8 * 32 + j)]) * tree_attn::widen(q[std::size_t(i % 8 * 32 + j)]);
  }
  under_seeds(4, [&] {
    DeviceBuffer<BFloat16> keys(16 * 32), queries(8 * 32);
    keys.upload(k), queries.upload(q);
    DeviceBuffer<float> s(128);
    s.fill(0xFF);
    launch(scores, {.block = {32}}, Stream{}, keys.data(), queries.data(), s.data());
    const std::vector<float> got = s.download();
    for (int i = 0; i < 128; ++i)
      expect_equal(got[std::size_t(i)], want[std::size_t(i)],
                   "the score of key " + std::to_string(i / 8) + " and query " + std::to_string(i % 8));
  });
  return result();
}
