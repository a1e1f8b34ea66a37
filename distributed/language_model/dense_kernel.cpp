// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The arithmetic of a transformer in sixteen lanes. CMake compiles this file once per instruction set, with that set
/// in TREE_ATTN_INSTRUCTION_SET. No symbol but TREE_ATTN_DENSE_KERNEL may leave the object file, see lanes.hpp.
#include "distributed/language_model/dense_kernel.hpp"

#include "reference/cpu/lanes.hpp"

namespace tree_attn {
namespace {

using namespace lanes;

/// Rows and columns, in lanes, of a tile of the product: as many sums as stay in registers. No bit depends on it.
constexpr int kTileRows = 8 / kParts;
constexpr int kTileColumns = kParts == 1 ? 2 : 1;

/// kRows rows of y by kColumns times 16 columns.
template <int kRows, int kColumns>
TREE_ATTN_INLINE void tile(const float* x, std::int64_t in, const float* panel, float* y, std::int64_t out) {
  Lanes sum[kRows][kColumns] = {};
  for (std::int64_t i = 0; i < in; ++i) {
    Lanes w[kColumns];
    each<kColumns>([&]<int c>() TREE_ATTN_LAMBDA { w[c] = load(panel + i * kPanel + c * kLanes); });
    each<kRows>([&]<int r>() TREE_ATTN_LAMBDA {
      const float x_i = x[r * in + i];
      each<kColumns>([&]<int c>() TREE_ATTN_LAMBDA { sum[r][c] = sum[r][c] + x_i * w[c]; });
    });
  }
  each<kRows>([&]<int r>() TREE_ATTN_LAMBDA {
    each<kColumns>([&]<int c>() TREE_ATTN_LAMBDA { store(y + r * out + c * kLanes, sum[r][c]); });
  });
}

void product(const float* x, std::int64_t n, std::int64_t in, const float* panels, std::int64_t out, float* y) {
  for (std::int64_t o = 0; o < out; o += kPanel, panels += in * kPanel) {
    for (int c = 0; c < kPanel; c += kTileColumns * kLanes) {
      std::int64_t row = 0;
      for (; row + kTileRows <= n; row += kTileRows)
        tile<kTileRows, kTileColumns>(x + row * in, in, panels + c, y + row * out + o + c, out);
      for (; row < n; ++row) tile<1, kTileColumns>(x + row * in, in, panels + c, y + row * out + o + c, out);
    }
  }
}

/// Sum over the lanes, as sum_each() adds them.
TREE_ATTN_INLINE float sum(const Lanes& x) {
  Lanes rows[16] = {};
  rows[0] = x;
  float sums[16];
  sum_each(rows, 1, sums);
  return sums[0];
}

void rms_norm(const float* x, std::int64_t n, std::int64_t size, std::int64_t n_elements, const float* weight, float eps,
              float* y) {
  for (; n > 0; --n, x += size, y += size) {
    Lanes squares{};
    for (std::int64_t i = 0; i < size; i += kLanes) {
      const Lanes x_i = load(x + i);
      squares = squares + x_i * x_i;
    }
    const float factor = 1 / __builtin_sqrtf(sum(squares) / static_cast<float>(n_elements) + eps);
    for (std::int64_t i = 0; i < size; i += kLanes) store(y + i, (factor * load(x + i)) * load(weight + i));
  }
}

/// 2^x for x <= 0.
TREE_ATTN_INLINE Part exp2(Part x) {
  const Part shift = ceil(x);
  return exp2_fraction(x - shift) * pow2(shift);
}

void gate(float* gate, const float* up, std::int64_t n) {
  constexpr float kLog2E = 0x1.715476p+0f;
  // With t = exp(-|g|) no exponential overflows: 1 / (1 + exp(-g)) is 1 / (1 + t) for g >= 0, and t / (1 + t) otherwise.
  const auto silu = [](Part g) TREE_ATTN_LAMBDA {
    const Part t = exp2(kLog2E * select(g < 0.0f, g, -g));
    return g * (select(g < 0.0f, t, all(1)) / (1.0f + t));
  };
  for (std::int64_t i = 0; i < n; i += kLanes) store(gate + i, map(silu, load(gate + i)) * load(up + i));
}

/// Attention of one query head.
TREE_ATTN_INLINE void window_head(const WindowStep& step, const float* q, const float* k, const float* v, float* z) {
  const std::int64_t stride = step.kv_heads * step.d;

  // Scores in base two, sixteen keys at a time, and the largest of them.
  float largest = -__builtin_inff();
  for (std::int64_t j = 0; j < step.n_keys; j += kLanes) {
    Lanes products[16] = {};
    const std::int64_t n = step.n_keys - j < kLanes ? step.n_keys - j : kLanes;
    for (std::int64_t a = 0; a < n; ++a) {
      for (std::int64_t i = 0; i < step.d; i += kLanes)
        products[a] = products[a] + load(q + i) * load(k + (j + a) * stride + i);
    }
    sum_each(products, step.score_scale, step.weights + j);
    for (std::int64_t a = 0; a < n; ++a) largest = step.weights[j + a] > largest ? step.weights[j + a] : largest;
  }

  // Weights and their sum.
  for (std::int64_t j = 0; j < step.n_keys; j += kLanes) {
    const auto weigh = [largest](Part s) TREE_ATTN_LAMBDA { return exp2(s - largest); };
    store(step.weights + j, map(weigh, load(step.weights + j)));
  }
  float D = 0;
  for (std::int64_t j = 0; j < step.n_keys; ++j) D = D + step.weights[j];

  // z: the weighted sum of the values, divided by D.
  for (std::int64_t i = 0; i < step.d; i += kLanes) {
    Lanes weighted{};
    for (std::int64_t j = 0; j < step.n_keys; ++j) weighted = weighted + step.weights[j] * load(v + j * stride + i);
    store(z + i, map([D](Part x) TREE_ATTN_LAMBDA { return x / D; }, weighted));
  }
}

void window(const WindowStep& step, float* z) {
  for (std::int64_t h = 0; h < step.heads; ++h) {
    const std::int64_t kv = h / (step.heads / step.kv_heads) * step.d;
    window_head(step, step.q + h * step.d, step.k + kv, step.v + kv, z + h * step.d);
  }
}

}  // namespace

extern const DenseKernel TREE_ATTN_DENSE_KERNEL;
const DenseKernel TREE_ATTN_DENSE_KERNEL{TREE_ATTN_INSTRUCTION_SET, product, rms_norm, gate, window};

}  // namespace tree_attn
