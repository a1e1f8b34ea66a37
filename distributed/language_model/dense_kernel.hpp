// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The arithmetic of a transformer between its attention steps, row by row: products, norms, gates, sliding windows.
/// One build per instruction set (eq. (7) inside a sliding window).
///
/// Row i of every result is a function of row i of the operands alone, or of a window of rows that ends there. The order of
/// each sum is fixed and no multiply-add is fused. Hence a position has the same bits in every chunk of positions, on every
/// number of ranks and threads, and on every instruction set. A library's matrix product does not have this property: it
/// chooses the order of its sums by the sizes of the matrices.
///
/// All rows are padded with zeros to a multiple of 32 elements, see padded().
#pragma once

#include <cstdint>
#include <string_view>

namespace tree_attn {

/// Columns of a panel of weights; rows are padded to a multiple of it.
inline constexpr std::int64_t kPanel = 32;
/// Elements of a row that holds n.
constexpr std::int64_t padded(std::int64_t n) { return (n + kPanel - 1) / kPanel * kPanel; }

/// One position of a windowed layer.
struct WindowStep {
  const float* q;         ///< [heads][d]
  const float *k, *v;     ///< [n_keys] rows of [kv_heads][d]
  std::int64_t n_keys;    ///< positions in the window, at least 1
  std::int64_t heads;     ///< query heads
  std::int64_t kv_heads;  ///< key/value heads, a divisor of heads
  std::int64_t d;         ///< padded length of a key
  float score_scale;      ///< multiplies q.k; with the factor log2(e)
  float* weights;         ///< workspace [padded(n_keys)]
};

/// The loops, compiled for one instruction set. All of them compute the same bits.
struct DenseKernel {
  std::string_view name;  ///< as TREE_ATTN_INSTRUCTION_SET takes it
  /// y = x W^T for n rows: y_o = sum_i x_i W_oi, added in the order of i.
  /// @param[in] x [n][in]
  /// @param[in] panels W in panels of 32 outputs: [out / 32][in][32]
  /// @param[out] y [n][out]
  void (*product)(const float* x, std::int64_t n, std::int64_t in, const float* panels, std::int64_t out, float* y);
  /// y = x / sqrt(mean(x^2) + eps) * weight for n rows.
  /// @param[in] x [n][size], padded with zeros @param n_elements of a row without the padding
  /// @param[in] weight [size], padded with zeros
  /// @param[out] y [n][size]
  void (*rms_norm)(const float* x, std::int64_t n, std::int64_t size, std::int64_t n_elements, const float* weight,
                   float eps, float* y);
  /// gate_i <- silu(gate_i) up_i for n elements, a multiple of 16; silu(g) = g / (1 + exp(-g)).
  /// @param[in,out] gate [n] @param[in] up [n]
  void (*gate)(float* gate, const float* up, std::int64_t n);
  /// Attention of one position to the keys of its window: z = sum_j softmax(s)_j v_j of every head.
  /// @param[out] z [heads][d]
  void (*window)(const WindowStep& step, float* z);
};

/// The kernel for this processor: that of the instruction set of leaf_kernel().
const DenseKernel& dense_kernel();

}  // namespace tree_attn
