// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 9.4: softmax in one pass.
///
/// Hint: A lane holds a largest score, a sum and a weighted sum, relative to that score. Two of these merge as two
/// states do; lanes without a key have -inf, and -inf less -inf is NaN.
#pragma once

#include "notebooks_cpp/exercises/puzzle.hpp"

/// out[0] = log sum_a exp(s_a) and out[1] = sum_a softmax(s)_a v_a over n > 0 keys, by one warp; at least one score is
/// finite. Words: load_once(), __shfl_xor_sync(), std::exp().
inline __global__ void online_softmax(const float* s, const float* v, int n, float* out) {
  float largest = -INFINITY, sum = 0, weighted = 0;
  // Brings the sums to a common largest score and adds. Two lanes without a key have -inf both, and exp(-inf + inf) is NaN.
  const auto merge = [&](float other, float other_sum, float other_weighted) {
    const float both = std::fmax(largest, other);
    if (both == -INFINITY) return;
    const float f = std::exp(largest - both), g = std::exp(other - both);
    largest = both, sum = f * sum + g * other_sum, weighted = f * weighted + g * other_weighted;
  };
  for (int a = static_cast<int>(threadIdx.x); a < n; a += 32) merge(load_once(s + a), 1, load_once(v + a));
  for (int flip = 16; flip > 0; flip /= 2) {
    const float other = __shfl_xor_sync(0xFFFFFFFF, largest, flip), other_sum = __shfl_xor_sync(0xFFFFFFFF, sum, flip);
    merge(other, other_sum, __shfl_xor_sync(0xFFFFFFFF, weighted, flip));
  }
  if (threadIdx.x == 0) store_fresh(out, largest + std::log(sum)), store_fresh(out + 1, weighted / sum);
}
