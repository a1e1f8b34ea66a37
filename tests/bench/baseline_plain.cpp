// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The definition of attention as two loops, compiled with -O3 -ffast-math for this processor.
///
/// The compiler may reorder every sum. Bits are those of one compiler on one processor.
#include "tests/bench/baselines.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

namespace tree_attn::bench {

namespace {

/// One query head; a dimension known to the compiler lets it keep z in registers.
/// @param[out] weights [N]
/// @param[out] z [d]
template <int d, class T>
void decode_head(std::int64_t n_keys, float scale, const float* __restrict q, const T* __restrict k, const T* __restrict v,
                 float* __restrict weights, float* __restrict z) {
  // Scores.
  float largest = -INFINITY;
  for (std::int64_t a = 0; a < n_keys; ++a) {
    float sum = 0;
    for (int j = 0; j < d; ++j) sum += q[j] * widen(k[a * d + j]);
    weights[a] = scale * sum;
    largest = std::max(largest, weights[a]);
  }
  float total = 0;
  for (std::int64_t a = 0; a < n_keys; ++a) {
    weights[a] = std::exp(weights[a] - largest);
    total += weights[a];
  }

  // Weighted values.
  float sums[d] = {};
  for (std::int64_t a = 0; a < n_keys; ++a)
    for (int j = 0; j < d; ++j) sums[j] += weights[a] * widen(v[a * d + j]);
  for (int j = 0; j < d; ++j) z[j] = sums[j] / total;
}

template <int d, class T>
void decode_heads(const Step& step, std::int64_t begin, std::int64_t end, float* z) {
  thread_local std::vector<float> weights;
  weights.resize(static_cast<std::size_t>(step.n_keys));
  const T *k = reinterpret_cast<const T*>(step.k), *v = reinterpret_cast<const T*>(step.v);
  const std::int64_t group = step.heads / step.kv_heads;
  for (std::int64_t h = begin * group; h < end * group; ++h) {
    const std::int64_t first = h / group * step.n_keys * d;
    decode_head<d>(step.n_keys, step.scale, step.q + h * d, k + first, v + first, weights.data(), z + h * d);
  }
}

}  // namespace

void plain_decode(const Step& step, std::int64_t begin, std::int64_t end, float* z) {
  with_dtype(step.dtype, [&]<class T>(T) {
    if constexpr (sizeof(T) <= sizeof(float)) {
      if (step.head_dim == 64) return decode_heads<64, T>(step, begin, end, z);
      if (step.head_dim == 128) return decode_heads<128, T>(step, begin, end, z);
    }
    throw std::invalid_argument("plain_decode: heads of 64 or 128 elements of F32, F16 or BF16");
  });
}

}  // namespace tree_attn::bench
