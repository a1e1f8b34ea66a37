// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Owning tensors for tests, filled from a seed and stored in any type.
#pragma once

#include "reference/state/require.hpp"
#include "reference/tensor/convert.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>
#include <vector>

namespace tree_attn::test {

using Shape = std::array<std::int64_t, 4>;

inline std::int64_t n_elements(const Shape& shape) { return shape[0] * shape[1] * shape[2] * shape[3]; }

/// Stored elements with a dense view of them.
struct Tensor {
  std::vector<std::byte> bytes;
  DType dtype = DType::F32;
  Shape shape{};

  /// @param elements as many as the shape has; or none, and the caller fills bytes @throws std::invalid_argument otherwise
  Tensor(const std::vector<float>& elements, Shape tensor_shape, DType stored_as = DType::F32)
      : bytes(elements.size() * bytes_of(stored_as)), dtype(stored_as), shape(tensor_shape) {
    require(elements.empty() || std::ssize(elements) == n_elements(shape), "Tensor: ", elements.size(),
            " elements for a shape of ", n_elements(shape));
    store(elements.data(), dtype, std::ssize(elements), bytes.data());
  }
  TensorView view() const { return TensorView::dense(bytes.data(), dtype, shape); }
  operator TensorView() const { return view(); }
  /// Overwrites the element [i, j, n, c].
  void set(std::int64_t i, std::int64_t j, std::int64_t n, std::int64_t c, float x) {
    const std::int64_t at = ((i * shape[1] + j) * shape[2] + n) * shape[3] + c;
    store(&x, dtype, 1, bytes.data() + at * static_cast<std::int64_t>(bytes_of(dtype)));
  }
};

/// Calls f(i, j, n) for every row [i, j, n, :], in the order of memory.
template <class Function>
void for_each_row(const Shape& shape, const Function& f) {
  for (std::int64_t i = 0; i < shape[0]; ++i)
    for (std::int64_t j = 0; j < shape[1]; ++j)
      for (std::int64_t n = 0; n < shape[2]; ++n) f(i, j, n);
}

/// Normally distributed elements with mean 0 and deviation sigma.
inline std::vector<float> normal_elements(std::mt19937& random, std::int64_t count, float sigma = 1) {
  std::normal_distribution<float> normal(0, sigma);
  std::vector<float> elements(static_cast<std::size_t>(count));
  for (float& x : elements) x = normal(random);
  return elements;
}

inline Tensor normal_tensor(std::mt19937& random, Shape shape, DType dtype = DType::F32, float sigma = 1) {
  return Tensor(normal_elements(random, n_elements(shape), sigma), shape, dtype);
}

/// One row as double.
inline std::vector<double> row_of(const TensorView& view, std::int64_t i, std::int64_t j, std::int64_t n) {
  std::vector<double> row(static_cast<std::size_t>(view.shape[3]));
  load_row(view, i, j, n, row.data());
  return row;
}

}  // namespace tree_attn::test
