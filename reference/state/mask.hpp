// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Changes of a score before it is weighed: the soft cap, and then the mask (section 5).
///
/// The order is that of ONNX Attention: a cap after the mask would make a key of score -inf one of score -c.
#pragma once

#include "reference/state/state.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace tree_attn {

/// A mask [b or 1, n_h or 1, l, N], in memory of the caller. Of a shard only the elements of its keys are read.
struct Mask {
  const std::byte* data = nullptr;  ///< first byte, at any alignment; null: no mask
  bool is_boolean = false;          ///< bytes, 0 where a query does not see a key; otherwise F32, added to natural scores
  std::array<std::int64_t, 4> shape{};   ///< an axis of length 1 counts for all entries or all heads
  std::array<std::int64_t, 3> stride{};  ///< distances in elements along the first three axes

  /// A dense mask, last axis fastest.
  static Mask dense(const void* data, bool is_boolean, std::array<std::int64_t, 4> shape) {
    return {static_cast<const std::byte*>(data),
            is_boolean,
            shape,
            {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3]}};
  }
  /// Mask of query j alone.
  Mask query(std::int64_t j) const {
    Mask mask = *this;
    if (data != nullptr) mask.data = row(0, 0, j), mask.shape[2] = 1;
    return mask;
  }
  /// First byte of the elements of a query. @pre there is a mask
  const std::byte* row(std::int64_t i, std::int64_t h, std::int64_t j) const {
    const std::int64_t at = (shape[0] == 1 ? 0 : i * stride[0]) + (shape[1] == 1 ? 0 : h * stride[1]) + j * stride[2];
    return data + (is_boolean ? at : at * std::int64_t{sizeof(float)});
  }
  /// A score with the element of a key. @param unit of the score: 1, or log2(e) where it is in base two
  template <class Real>
  Real add(Real s, Real unit, std::int64_t i, std::int64_t h, std::int64_t j, std::int64_t a) const {
    if (data == nullptr) return s;
    if (is_boolean) return row(i, h, j)[a] == std::byte{0} ? -std::numeric_limits<Real>::infinity() : s;
    float element;
    std::memcpy(&element, row(i, h, j) + a * std::int64_t{sizeof element}, sizeof element);
    return s + unit * Real{element};
  }
};

/// Tests for a valid soft cap: 0 (none), or 2^-60 to 2^60.
constexpr bool is_soft_cap(double c) { return c == 0 || (c >= 0x1p-60 && c <= 0x1p60); }

/// log2(e) c tanh(x) = log2(e) c (1 - 2^-y) / (1 + 2^-y) with x = |s| / (log2(e) c) and y = 2 log2(e) x, with the sign of s;
/// by a series for small x; s if c = 0.
///
/// Edges: s = +-inf gives +-log2(e) c, and NaN stays NaN. The bits of std::tanh differ between C libraries.
struct SoftCap {
  float limit, inverse;  ///< log2(e) c and its inverse; 0: none

  /// @param c natural
  explicit SoftCap(double c = 0)
      : limit(static_cast<float>(kLog2E * c)), inverse(c == 0 ? 0 : static_cast<float>(1 / (kLog2E * c))) {}
  TREE_ATTN_HOST_DEVICE explicit operator bool() const { return limit != 0; }
  /// @param s score in base two
  TREE_ATTN_HOST_DEVICE float operator()(float s) const {
    if (limit == 0) return s;
    constexpr float kSeries[] = {-0x1.ba1ba2p-5f, 0x1.111112p-3f, -0x1.555556p-2f, 1.0f};
    const float x = std::fabs(s) * inverse, z = x * x, product = x * 0x1.715476p+1f, y = 64.0f < product ? 64.0f : product;
    const float shift = std::ceil(-y), u = exp2_fraction(-y - shift) * pow2(shift);
    float series = 0x1.664f48p-6f;
    for (const float coefficient : kSeries) series = series * z + coefficient;
    return std::copysign(limit * (x < 0.17f ? series * x : (1 - u) / (1 + u)), s);
  }
};

}  // namespace tree_attn
