// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Checks of DLPack tensors: types, devices, axes, strides, and elements that share memory.
#include "distributed/interface/dlpack_view.hpp"

#include <algorithm>
#include <string>

namespace tree_attn::dlpack {
namespace {

/// Tests whether a tensor lies on the device of a backend. @throws std::invalid_argument if it lies in neither its memory
/// nor the host's
bool is_on_device(const DLDevice& at, const char* name, const OfBackend* device) {
  const bool has_device = device != nullptr && device->blocks != nullptr;
  const int index = has_device ? device->index : 0;
  if (has_device && at.device_type == device->type && at.device_id == index) return true;
  const std::string other =
      has_device ? " or on device type " + std::to_string(device->type) + ", index " + std::to_string(index) : "";
  require(at.device_type == kDLCPU || at.device_type == kDLCUDAHost, name, " is on device type ", at.device_type, ", index ",
          at.device_id, "; tensors in memory of the host", other, " are taken");
  return false;
}

/// Bytes from the first to the last element; 0 if there is none.
std::int64_t extent(const TensorView& view) {
  std::int64_t last = view.shape[3] - 1;
  for (std::size_t axis = 0; axis < 3; ++axis) last += (view.shape[axis] - 1) * view.stride[axis];
  return view.data == nullptr ? 0 : (last + 1) * static_cast<std::int64_t>(bytes_of(view.dtype));
}

}  // namespace

DType dtype_of(const char* name, DLDataType type) {
  constexpr auto is = [](DLDataType t, int code, int bits) { return t.code == code && t.bits == bits && t.lanes == 1; };
  if (is(type, kDLFloat, 64)) return DType::F64;
  if (is(type, kDLFloat, 32)) return DType::F32;
  if (is(type, kDLFloat, 16)) return DType::F16;
  if (is(type, kDLBfloat, 16)) return DType::BF16;
  require(is(type, kDLFloat8_e4m3fn, 8), name, " has elements of code ", int{type.code}, ", ", int{type.bits}, " bits and ",
          type.lanes, " lanes; F64, F32, F16, BF16 and F8_E4M3 are taken");
  return DType::F8_E4M3;
}

TensorView view_of(const DLManagedTensor* managed, const char* name, int n_axes, Rows rows, const OfBackend* device) {
  require(managed != nullptr, name, " is null");
  const DLTensor& tensor = managed->dl_tensor;
  const bool on_device = is_on_device(tensor.device, name, device);
  require(tensor.ndim == n_axes, name, " has ", tensor.ndim, " axes; expected ", n_axes);
  require(tensor.shape != nullptr, name, " has no shape");
  TensorView view{.dtype = dtype_of(name, tensor.dtype), .shape = {1, 1, 1, 1}, .on_device = on_device};
  const int shift = rows == Rows::kScalars ? 3 - n_axes : 4 - n_axes;
  const bool is_empty = std::any_of(tensor.shape, tensor.shape + n_axes, [](std::int64_t n) { return n == 0; });
  double end = static_cast<double>(tensor.byte_offset), n_dense = 1;  // in double: what a stranger passes may overflow
  std::int64_t dense = 1;
  for (int axis = n_axes - 1; axis >= 0; --axis) {
    const std::int64_t n = tensor.shape[axis], stride = tensor.strides == nullptr ? dense : tensor.strides[axis];
    require(n >= 0, name, " has ", n, " elements along axis ", axis);
    n_dense *= static_cast<double>(std::max<std::int64_t>(n, 1));
    if (n > 1 && !is_empty)
      require(stride >= 0, name, " has stride ", stride, " along axis ", axis, "; strides are at least 0");
    if (n > 1 && !is_empty)
      end += static_cast<double>(n - 1) * static_cast<double>(stride) * static_cast<double>(bytes_of(view.dtype));
    require(n_dense <= 0x1p58 && end <= 0x1p62, name, " has more than 2^58 elements, or lies beyond 2^62 bytes");
    const int at = shift + axis;
    view.shape[static_cast<std::size_t>(at)] = n;
    if (at < 3) view.stride[static_cast<std::size_t>(at)] = n > 1 && !is_empty ? stride : 0;
    require(at < 3 || n <= 1 || is_empty || stride == 1, name, " has stride ", stride, " along its last axis; 1 is needed");
    dense *= std::max<std::int64_t>(n, 1);
  }
  require(is_empty || tensor.data != nullptr, name, " has no data");
  if (is_empty) return view;
  view.data = static_cast<const std::byte*>(tensor.data) + tensor.byte_offset;
  require(!on_device || reinterpret_cast<std::uintptr_t>(view.data) % bytes_of(view.dtype) == 0, name,
          " is on a device and begins inside an element");
  return view;
}

Output::Output(const DLManagedTensor* managed, const char* name, int n_axes, std::array<std::int64_t, 4> expected, Rows rows,
               const OfBackend* device)
    : view_(view_of(managed, name, n_axes, rows, device)), name_(name) {
  require(view_.shape == expected, name, " is [", view_.shape[0], ", ", view_.shape[1], ", ", view_.shape[2], ", ",
          view_.shape[3], "] with four axes; expected [", expected[0], ", ", expected[1], ", ", expected[2], ", ",
          expected[3], "]");
  // Along axes of growing stride, each step passes all that lies below. Where no element is, none coincide.
  std::vector<std::array<std::int64_t, 2>> axes{{1, view_.shape[3]}};
  for (std::size_t axis = 0; axis < 3; ++axis) axes.push_back({view_.stride[axis], view_.shape[axis]});
  std::ranges::sort(axes);
  std::int64_t below = 0;
  for (const auto& [stride, n] : axes) {
    if (n <= 1 || view_.data == nullptr) continue;
    require(stride > below, name, " has elements that share memory: it is written");
    below += (n - 1) * stride;
  }
}

void Output::require_apart(const TensorView& other, const char* name) const {
  const auto begin = [](const TensorView& view) { return reinterpret_cast<std::uintptr_t>(view.data); };
  const auto end = [&](const TensorView& view) { return begin(view) + static_cast<std::uintptr_t>(extent(view)); };
  const bool overlap =
      view_.data != nullptr && other.data != nullptr && begin(view_) < end(other) && begin(other) < end(view_);
  require(!overlap, name_, " is written and overlaps ", name);
}

void Output::queue(const float* from, const OfBackend& device) const {
  TensorView dense = TensorView::dense(from, DType::F32, view_.shape);
  dense.on_device = true;
  device.blocks->convert(dense, view_);
}

Outputs out_and_lse(const DLManagedTensor* out, const DLManagedTensor* lse, const std::array<std::int64_t, 4>& shape,
                    const OfBackend* device) {
  Outputs outputs;
  outputs.add(out, "out", 4, shape, Rows::kVectors, device);
  if (lse != nullptr) outputs.add(lse, "lse", 3, {shape[0], shape[1], shape[2], 1}, Rows::kScalars, device);
  return outputs;
}

void write(const Outputs& outputs, std::span<const float> out, std::span<const float> lse) {
  outputs[0].write(out.data());
  if (outputs.size() > 1) outputs[1].write(lse.data());
}

void write(const Outputs& outputs, const OutputView& output, const OfBackend& device, std::optional<void*> stream) {
  if (!output.on_device) return write(outputs, output.out, output.lse);
  DeviceStream& own = device.blocks->stream();
  own.follow(stream.value_or(nullptr));
  outputs[0].queue(output.out.data(), device);
  if (outputs.size() > 1) outputs[1].queue(output.lse.data(), device);
  if (stream)
    own.lead(*stream);
  else
    own.wait();
}

}  // namespace tree_attn::dlpack
