// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The scales of keys and values that are stored in F8_E4M3, one for each key/value head of each batch entry.
#pragma once

#include "reference/tensor/convert.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace tree_attn {

/// Factors of stored keys, which join that of q.k, and of values, by which outputs are multiplied [b, n_kv]; empty: 1.
///
/// A scale of each head, as attention kernels take it, is as accurate as one of each leaf: the exponent of an element covers
/// 2^-9 to 448, and its mantissa is what loses digits (tests/reference/decode/test_float8.cpp measures it). One of a leaf
/// would be fixed by its first key, or change elements that are held.
struct KvScales {
  std::vector<float> k{}, v{};
  bool operator==(const KvScales&) const = default;
  /// The scale of a key/value head, counted over all entries.
  static float at(const std::vector<float>& scales, std::int64_t head) {
    return scales.empty() ? 1 : scales[static_cast<std::size_t>(head)];
  }
};

/// Tests whether a scale is from 2^-100 to 2^100, where no product with an element of F8_E4M3 leaves the range of F32.
inline bool is_scale(float x) { return x >= 0x1p-100f && x <= 0x1p100f; }

/// Divides elements by a scale in F32, then stores them. By a power of two nothing is lost before the last rounding. What is
/// finite stays so.
/// @param[out] to bytes_of(dtype) * count bytes
inline void quantise(float* x, float scale, DType dtype, std::int64_t count, std::byte* to) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  for (std::int64_t i = 0; i < count; ++i)
    if (std::isfinite(x[i])) x[i] = std::clamp(x[i] / scale, -kLargest, kLargest);
  store(x, dtype, count, to);
}

/// Stores row (i, j, a) of a view: as it is if it has the type, else divided by a scale. @param row memory for it in F32
inline void store_row(const TensorView& view, std::int64_t i, std::int64_t j, std::int64_t a, float scale, DType dtype,
                      std::vector<float>& row, std::byte* to) {
  const std::int64_t d = view.shape[3];
  if (view.dtype == dtype) {
    std::copy_n(view.row(i, j, a), d * static_cast<std::int64_t>(bytes_of(dtype)), to);
    return;
  }
  row.resize(static_cast<std::size_t>(d));
  load_row(view, i, j, a, row.data());
  quantise(row.data(), scale, dtype, d, to);
}

}  // namespace tree_attn
