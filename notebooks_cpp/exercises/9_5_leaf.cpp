// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 9.5: a leaf of up to 64 keys.
///
/// Expected: One warp computes the state of a leaf: the shift e is the largest ceil(s_a), D and n are sums under it. The
/// scores are in base two and finite. A leaf without keys is the empty state, to its last bit.
///
/// Run: ./run exercise 9.5
#include "notebooks_cpp/exercises/puzzle.hpp"
#include "reference/state/state.hpp"

#include <cmath>
#include <string>
#include <vector>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/9_5_leaf.hpp"
#else

// Change from here ...
/// state = (e, D, n_0 .. n_31) of n_keys <= 64 keys: s_a = q.k_a, e = max ceil(s_a), D = sum 2^(s_a - e), n = sum 2^(s_a -
/// e) v_a. q has 32 elements, k and v are [n_keys][32]: lane j is component j. Words: __shfl_xor_sync(), std::exp2(), and
/// of state.hpp key_shift() and pow2(); empty is (-inf, 0, -0 .. -0).
inline __global__ void leaf(const float* q, const float* k, const float* v, int n_keys, float* state) {
  // The first key alone.
  (void)k, (void)q;
  store_fresh(state + 2 + threadIdx.x, n_keys > 0 ? load_once(v + threadIdx.x) : 0.0f);
  if (threadIdx.x == 0) store_fresh(state, 0.0f), store_fresh(state + 1, 1.0f);
}
// ... to here.

#endif

int main() {
  for (const int n : {0, 1, 24, 64}) {
    const std::vector<float> q = numbers(32, 6), k = numbers(32 * n, 7), v = numbers(32 * n, 8);
    std::vector<double> s(std::size_t(n), 0.0);
    double e = -INFINITY;
    for (int a = 0; a < n; ++a) {
      for (int j = 0; j < 32; ++j) s[std::size_t(a)] += double(q[std::size_t(j)]) * double(k[std::size_t(32 * a + j)]);
      e = std::fmax(e, std::ceil(s[std::size_t(a)]));
    }
    under_seeds(2, [&] {
      // A buffer of no keys is one of a single element that nothing may read.
      const DeviceBuffer<float> query = on_device(q), keys = on_device(n > 0 ? k : std::vector<float>(1)),
                                values = on_device(n > 0 ? v : std::vector<float>(1));
      DeviceBuffer<float> out(34);
      out.fill(0xFF);
      launch(leaf, {.block = {32}}, Stream{}, query.data(), keys.data(), values.data(), n, out.data());
      const std::vector<float> state = out.download();
      const std::string what = " of " + std::to_string(n) + " keys";
      expect_equal(double(state[0]), e, "the shift" + what);
      for (int i = 1; i < 34; ++i) {
        double sum = 0;
        for (int a = 0; a < n; ++a)
          sum += std::exp2(s[std::size_t(a)] - e) * (i == 1 ? 1 : double(v[std::size_t(32 * a + i - 2)]));
        expect_near(double(state[std::size_t(i)]) + 100, sum + 100, 1e-6, "100 + element " + std::to_string(i) + what);
        if (n == 0)
          expect_bits(state[std::size_t(i)], i == 1 ? 0.0f : -0.0f, "the bits of element " + std::to_string(i) + what);
      }
    });
  }
  return result();
}
