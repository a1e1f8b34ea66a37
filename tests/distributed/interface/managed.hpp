// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Helpers that tests of the C interface share: tensors of exactly their size, a call, a handle, and the line of a
/// refusal.
#pragma once

#include "distributed/interface/tree_attn.h"
#include "reference/tensor/view.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace tree_attn::test {

constexpr DLDataType kF64{kDLFloat, 64, 1}, kBF16{kDLBfloat, 16, 1}, kF8{kDLFloat8_e4m3fn, 8, 1};

/// A tensor with memory of exactly its size, so that a read or a write beyond it is seen.
struct Managed {
  std::vector<std::byte> bytes;
  std::vector<std::int64_t> shape, strides;
  DLManagedTensor tensor{};

  explicit Managed(std::vector<std::int64_t> axes, DLDataType type = {kDLFloat, 32, 1})
      : shape(std::move(axes)), strides(shape.size()) {
    std::int64_t n = 1;
    for (std::size_t axis = shape.size(); axis-- > 0; n *= shape[axis]) strides[axis] = n;
    bytes.resize(static_cast<std::size_t>(n) * type.bits / 8);
    tensor.dl_tensor = {bytes.data(), {kDLCPU, 0}, static_cast<int>(shape.size()), type, shape.data(), strides.data(), 0};
    tensor.deleter = [](DLManagedTensor*) { std::abort(); };  // the caller keeps all tensors
  }
  /// Normally distributed elements.
  Managed(std::vector<std::int64_t> axes, unsigned seed, DLDataType type = {kDLFloat, 32, 1})
      : Managed(std::move(axes), type) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < bytes.size() / (type.bits / 8); ++i) {
      const float x = normal(random);
      const double wide = x;
      if (type.bits == 64) std::memcpy(bytes.data() + 8 * i, &wide, 8);
      if (type.bits == 32) std::memcpy(bytes.data() + 4 * i, &x, 4);
    }
  }
  Managed(const Managed&) = delete;
  template <class Real = float>
  Real at(std::size_t i) const {
    Real x;
    std::memcpy(&x, bytes.data() + sizeof x * i, sizeof x);
    return x;
  }
  TensorView view() const {
    return TensorView::dense(bytes.data(), tensor.dl_tensor.dtype.bits == 64 ? DType::F64 : DType::F32,
                             {shape[0], shape[1], shape[2], shape[3]});
  }
  DLTensor& dl() { return tensor.dl_tensor; }
  operator const DLManagedTensor*() const { return &tensor; }
};

/// q, k, v and the outputs of one call.
struct Call {
  Managed q{{1, 4, 2, 8}, 1}, k{{1, 2, 70, 8}, 2}, v{{1, 2, 70, 6}, 3}, out{{1, 4, 2, 6}}, lse{{1, 4, 2}};
  int attend() const { return ta_attend(q, k, v, 0, nullptr, out, lse, 0); }
};

/// A cache for the keys and values of a Call.
inline ta_setup setup_of_call() {
  ta_setup setup{};
  setup.size = sizeof setup;
  setup.batch = 1, setup.heads = 4, setup.kv_heads = 2, setup.most_queries = 2, setup.head_dim = 8, setup.value_dim = 6;
  return setup;
}

/// Handle that ta_open() opens, closed at the end.
struct Handle {
  ta_attention* opened = nullptr;
  explicit Handle(const ta_setup& setup) { REQUIRE(ta_open(&setup, &opened) == TA_OK); }
  ~Handle() { ta_close(opened); }
  Handle(const Handle&) = delete;
  operator ta_attention*() const { return opened; }
};

/// Error line of a refused call.
inline std::string line(int status, int expected = TA_INVALID) {
  CHECK(status == expected);
  const std::string text = ta_error();
  CHECK(text.find('\n') == std::string::npos);
  return text;
}

inline bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace tree_attn::test
