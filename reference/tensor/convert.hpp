// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Conversions between stored elements and float or double.
#pragma once

#include "reference/tensor/view.hpp"

#include <cstddef>
#include <cstdint>

namespace tree_attn {

/// Converts `count` stored elements at `from`, at any alignment, to Real. The conversion is exact, except that F64 to float
/// rounds.
/// @param[out] out [count]
template <class Real>
void load(const std::byte* from, DType dtype, std::int64_t count, Real* out);

/// Loads the row [i, j, n, :] of shape[3] elements as Real, see load().
/// @param[out] out [shape[3]]
template <class Real>
void load_row(const TensorView& view, std::int64_t i, std::int64_t j, std::int64_t n, Real* out) {
  load(view.row(i, j, n), view.dtype, view.shape[3], out);
}

/// Rounds `count` elements to the stored type, to nearest, ties to even.
/// @param[out] to bytes_of(dtype) * count bytes, at any alignment
void store(const float* from, DType dtype, std::int64_t count, std::byte* to);

}  // namespace tree_attn
