// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Tensors for tests: drawn from a seed, stored as asked, owned.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "reference/tensor/convert.hpp"

namespace tree_attn::test {

using Shape = std::array<std::int64_t, 4>;

/// Stored numbers and a dense view of them.
struct Tensor {
  std::vector<std::byte> bytes;
  Storage storage = Storage::F32;
  Shape shape{};

  Tensor(const std::vector<float>& numbers, Shape tensor_shape, Storage stored_as = Storage::F32)
      : bytes(numbers.size() * bytes_of(stored_as)), storage(stored_as), shape(tensor_shape) {
    store(numbers.data(), storage, static_cast<std::int64_t>(numbers.size()), bytes.data());
  }
  TensorView view() const { return TensorView::dense(bytes.data(), storage, shape); }
  operator TensorView() const { return view(); }
  /// Overwrites the number [i, j, n, c].
  void set(std::int64_t i, std::int64_t j, std::int64_t n, std::int64_t c, float x) {
    const std::int64_t at = ((i * shape[1] + j) * shape[2] + n) * shape[3] + c;
    store(&x, storage, 1, bytes.data() + at * static_cast<std::int64_t>(bytes_of(storage)));
  }
};

inline std::int64_t n_elements(const Shape& shape) { return shape[0] * shape[1] * shape[2] * shape[3]; }

/// Normal numbers with mean 0 and deviation sigma.
inline std::vector<float> normal_numbers(std::mt19937& random, std::int64_t count, float sigma = 1) {
  std::normal_distribution<float> normal(0, sigma);
  std::vector<float> numbers(static_cast<std::size_t>(count));
  for (float& x : numbers) x = normal(random);
  return numbers;
}

inline Tensor normal_tensor(std::mt19937& random, Shape shape, Storage storage = Storage::F32, float sigma = 1) {
  return Tensor(normal_numbers(random, n_elements(shape), sigma), shape, storage);
}

/// One row as double.
inline std::vector<double> row_of(const TensorView& view, std::int64_t i, std::int64_t j, std::int64_t n) {
  std::vector<double> row(static_cast<std::size_t>(view.shape[3]));
  load_row(view, i, j, n, row.data());
  return row;
}

}  // namespace tree_attn::test
