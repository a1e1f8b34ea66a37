// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief DLPack tensors of a caller as views, checked before an element is read, and as outputs.
#pragma once

#include "distributed/interface/dlpack_tensor.h"
#include "gpu/backend/blocks.hpp"
#include "reference/decode/decode.hpp"
#include "reference/state/require.hpp"
#include "reference/tensor/convert.hpp"
#include "reference/tensor/view.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace tree_attn::dlpack {

/// Device on which tensors may lie beside the host, and copies of tensors to it.
struct OfBackend {
  std::unique_ptr<DeviceBlocks> blocks;  ///< null: nowhere
  DLDeviceType type = kDLCUDA;
  int index = 0;

  explicit OfBackend(const DevicePlatform& platform) {
    if (platform.make_blocks != nullptr) blocks = platform.make_blocks(0, 1, nullptr, nullptr), index = blocks->device();
    if (platform.is_emulated) type = kDLExtDev;
  }
};

/// Type of elements. @throws std::invalid_argument for one that is not taken
DType dtype_of(const char* name, DLDataType type);

/// Kind of the rows of a tensor. Scalars, as of an lse, get a last axis of one element; the last of their own axes may be
/// strided.
enum class Rows { kVectors, kScalars };

/// A tensor of up to four axes, as a view of four: ones are put before the axes.
/// @param device whose memory is taken too; null: of none
/// @throws std::invalid_argument in one line for what cannot be read as such; reads no element
TensorView view_of(const DLManagedTensor* managed, const char* name, int n_axes, Rows rows = Rows::kVectors,
                   const OfBackend* device = nullptr);

/// A tensor that is written.
class Output {
 public:
  /// @param expected axes @throws std::invalid_argument as view_of(); also for other axes, and elements that coincide
  Output(const DLManagedTensor* managed, const char* name, int n_axes, std::array<std::int64_t, 4> expected,
         Rows rows = Rows::kVectors, const OfBackend* device = nullptr);
  /// @throws std::invalid_argument if another tensor may share memory
  void require_apart(const TensorView& other, const char* name) const;
  void require_apart(const Output& other) const { require_apart(other.view_, other.name_); }
  /// @throws std::invalid_argument unless an input lies in the same memory
  void require_beside(const TensorView& input, const char* name) const {
    require(view_.on_device == input.on_device, name, " is in memory of ", input.on_device ? "a device" : "the host",
            ", and ", name_, " is not");
  }
  /// Queues a copy of the output from device memory.
  void queue(const float* from, const OfBackend& device) const;
  /// Writes dense elements, rounded to the type of the tensor.
  template <class Real>
  void write(const Real* from) const {
    for (std::int64_t i = 0; i < view_.shape[0]; ++i)
      for (std::int64_t j = 0; j < view_.shape[1]; ++j)
        for (std::int64_t n = 0; n < view_.shape[2] && view_.shape[3] > 0; ++n, from += view_.shape[3])
          write_row(from, view_.row(i, j, n));
  }
  /// @throws std::invalid_argument unless the elements are F64
  void require_double() const {
    require(view_.dtype == DType::F64, name_, " is ", name_of(view_.dtype), "; the oracle writes F64");
  }

 private:
  void write_row(const float* from, const std::byte* to) const {
    store(from, view_.dtype, view_.shape[3], const_cast<std::byte*>(to));
  }
  void write_row(const double* from, const std::byte* to) const {
    std::memcpy(const_cast<std::byte*>(to), from, static_cast<std::size_t>(view_.shape[3]) * sizeof *from);
  }

  TensorView view_;
  const char* name_;
};

/// The outputs of a call: none overlaps another, nor an input.
class Outputs {
 public:
  void add(const DLManagedTensor* managed, const char* name, int n_axes, std::array<std::int64_t, 4> expected,
           Rows rows = Rows::kVectors, const OfBackend* device = nullptr) {
    outputs_.emplace_back(managed, name, n_axes, expected, rows, device);
    for (std::size_t i = 0; i + 1 < outputs_.size(); ++i) outputs_.back().require_apart(outputs_[i]);
  }
  void require_apart(const TensorView& input, const char* name) const {
    for (const Output& output : outputs_) output.require_apart(input, name);
  }
  void require_beside(const TensorView& input, const char* name) const {
    for (const Output& output : outputs_) output.require_beside(input, name);
  }
  const Output& operator[](std::size_t i) const { return outputs_[i]; }
  std::size_t size() const { return outputs_.size(); }

 private:
  std::vector<Output> outputs_;
};

/// out [b, n_h, l, d_v] and, unless it is null, lse [b, n_h, l].
Outputs out_and_lse(const DLManagedTensor* out, const DLManagedTensor* lse, const std::array<std::int64_t, 4>& shape,
                    const OfBackend* device = nullptr);

/// Writes an output that is on the host.
void write(const Outputs& outputs, std::span<const float> out, std::span<const float> lse);
/// Writes an output that may lie on a device. Waits until it is written, unless a stream of the program takes it in its
/// order.
void write(const Outputs& outputs, const OutputView& output, const OfBackend& device, std::optional<void*> stream = {});

}  // namespace tree_attn::dlpack
