// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Strided views of q, k and v (the arrays of eq. (7)).
///
/// q [b, n_h, l, d_h], k [b, n_kv, N, d_h], v [b, n_kv, N, d_v]: b batch, n_h query heads, n_kv key/value heads, l query
/// positions, N keys. A view does not own or copy its elements and may start at any byte, so that mapped files need no copy.
#pragma once

#include "reference/state/require.hpp"
#include "reference/tensor/dtype.hpp"

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace tree_attn {

/// A strided view of a 4-axis array of stored elements; the last axis is contiguous.
struct TensorView {
  const std::byte* data = nullptr;       ///< first byte, at any alignment
  DType dtype = DType::F32;              ///< type of one element
  std::array<std::int64_t, 4> shape{};   ///< lengths of the four axes
  std::array<std::int64_t, 3> stride{};  ///< distances in elements along the first three axes
  bool on_device = false;                ///< whether the elements lie in memory of a device

  /// A view of a dense array, last axis fastest.
  static TensorView dense(const void* data, DType dtype, std::array<std::int64_t, 4> shape) {
    return {
        static_cast<const std::byte*>(data), dtype, shape, {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3]}};
  }
  /// First byte of the element at an offset in elements, as the strides count.
  const std::byte* element(std::int64_t offset) const { return data + offset * static_cast<std::int64_t>(bytes_of(dtype)); }
  /// First byte of the row [i, j, n, :].
  const std::byte* row(std::int64_t i, std::int64_t j, std::int64_t n) const {
    assert(i >= 0 && i < shape[0] && j >= 0 && j < shape[1] && n >= 0 && n < shape[2]);
    return element(i * stride[0] + j * stride[1] + n * stride[2]);
  }
  /// Entry i of the first axis, as a view [1, ...] of the same memory. @throws std::out_of_range unless 0 <= i < shape[0]
  TensorView entry(std::int64_t i) const {
    require<std::out_of_range>(i >= 0 && i < shape[0], "TensorView::entry: ", i, " of ", shape[0]);
    TensorView view = *this;
    view.shape[0] = 1;
    // An empty tensor may have no data to point into.
    if (i > 0) view.data = element(i * stride[0]);
    return view;
  }
  /// The positions [begin, end) of the third axis, as a view of the same memory.
  /// @throws std::out_of_range unless 0 <= begin <= end <= shape[2]
  TensorView positions(std::int64_t begin, std::int64_t end) const {
    require<std::out_of_range>(begin >= 0 && begin <= end && end <= shape[2], "TensorView::positions: [", begin, ", ", end,
                               ") of ", shape[2]);
    TensorView view = *this;
    view.shape[2] = end - begin;
    // An empty tensor may have no data to point into.
    if (end > begin) view.data = element(begin * stride[2]);
    return view;
  }
  /// The first d components of every row, as a view of the same memory. @pre 0 <= d <= shape[3]
  TensorView components(std::int64_t d) const { return {data, dtype, {shape[0], shape[1], shape[2], d}, stride, on_device}; }
};

/// Throws std::invalid_argument for a negative axis, and for elements without data, or in memory of a device.
/// @param function that has the view as its argument `name` @param may_be_on_device whether it reads memory of a device
inline void require_view(const char* function, const TensorView& view, const char* name, bool may_be_on_device = false) {
  bool empty = false;
  for (const std::int64_t n : view.shape) {
    require(n >= 0, function, ": ", name, " has an axis of negative length ", n);
    empty = empty || n == 0;
  }
  require(empty || view.data != nullptr, function, ": ", name, " has no data");
  require(!view.on_device || may_be_on_device, function, ": ", name, " is in memory of a device");
}

}  // namespace tree_attn
