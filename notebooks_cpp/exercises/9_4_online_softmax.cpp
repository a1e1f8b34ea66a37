// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 9.4: softmax in one pass.
///
/// Expected: A warp reads every score once. A lane keeps the largest score so far, and the sums of weights and of weighted
/// values under it; then the lanes merge. Scores may be -inf, or far above 88.
///
/// Run: ./run exercise 9.4
#include "notebooks_cpp/exercises/puzzle.hpp"

#include <cmath>
#include <string>
#include <vector>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/9_4_online_softmax.hpp"
#else

// Change from here ...
/// out[0] = log sum_a exp(s_a) and out[1] = sum_a softmax(s)_a v_a over n > 0 keys, by one warp; at least one score is
/// finite. Words: load_once(), __shfl_xor_sync(), std::exp().
inline __global__ void online_softmax(const float* s, const float* v, int n, float* out) {
  // Right for small scores only.
  float sum = 0, weighted = 0;
  for (int a = 0; a < n; ++a) sum += std::exp(load_once(s + a)), weighted += std::exp(load_once(s + a)) * load_once(v + a);
  if (threadIdx.x == 0) store_fresh(out, std::log(sum)), store_fresh(out + 1, weighted / sum);
}
// ... to here.

#endif

int main() {
  for (const int n : {1, 5, 32, 1000}) {
    for (const float scale : {0.1f, 10.0f, 1000.0f}) {
      std::vector<float> s = numbers(n, 4), v = numbers(n, 5);
      for (float& x : s) x *= scale;
      for (int a = 1; a < n; a += 3) s[std::size_t(a)] = -INFINITY;
      double largest = -INFINITY, sum = 0, weighted = 0;
      for (const float x : s) largest = std::fmax(largest, double(x));
      for (std::size_t a = 0; a < s.size(); ++a) {
        const double w = std::exp(double(s[a]) - largest);
        sum += w, weighted += w * double(v[a]);
      }
      under_seeds(2, [&] {
        const DeviceBuffer<float> scores = on_device(s), values = on_device(v);
        DeviceBuffer<float> out(2);
        out.fill(0xFF);
        launch(online_softmax, {.block = {32}}, Stream{}, scores.data(), values.data(), n, out.data());
        const std::string what = " of " + std::to_string(n) + " scores up to " + std::to_string(int(8 * scale));
        expect_near(double(out.download()[0]), largest + std::log(sum), 1e-5, "the log-sum-exp" + what);
        expect_near(double(out.download()[1]) + 10, weighted / sum + 10, 1e-5, "10 + the output" + what);
      });
    }
  }
  return result();
}
