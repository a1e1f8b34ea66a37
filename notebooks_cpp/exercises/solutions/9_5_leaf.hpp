// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 9.5: a leaf of up to 64 keys.
///
/// Hint: One shuffle butterfly gives every lane the score of a key. Then each lane updates shift, sum and its own
/// component: factor 2^(old shift - new shift) for what it has, weight 2^(s - new shift) for the key.
#pragma once

#include "notebooks_cpp/exercises/puzzle.hpp"
#include "reference/state/state.hpp"

/// state = (e, D, n_0 .. n_31) of n_keys <= 64 keys: s_a = q.k_a, e = max ceil(s_a), D = sum 2^(s_a - e), n = sum 2^(s_a -
/// e) v_a. q has 32 elements, k and v are [n_keys][32]: lane j is component j. Words: __shfl_xor_sync(), std::exp2(), and
/// of state.hpp key_shift() and pow2(); empty is (-inf, 0, -0 .. -0).
inline __global__ void leaf(const float* q, const float* k, const float* v, int n_keys, float* state) {
  const int lane = static_cast<int>(threadIdx.x);
  float e = -INFINITY, d = 0, n = -0.0f;
  for (int a = 0; a < n_keys; ++a) {
    float s = load_once(q + lane) * load_once(k + 32 * a + lane);
    for (int flip = 16; flip > 0; flip /= 2) s += __shfl_xor_sync(0xFFFFFFFF, s, flip);
    // Every lane has the score. A shift that rises is a power of two that rounds nothing.
    const float shift = std::fmax(e, tree_attn::key_shift(s)), factor = tree_attn::pow2(e - shift);
    const float weight = std::exp2(s - shift);
    e = shift, d = factor * d + weight, n = factor * n + weight * load_once(v + 32 * a + lane);
  }
  store_fresh(state + 2 + lane, n);
  if (lane == 0) store_fresh(state, e), store_fresh(state + 1, d);
}
