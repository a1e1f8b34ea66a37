// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Tensors in memory of the emulated device, as other programs pass them.
#pragma once

#include "gpu/platform/launch.hpp"
#include "tests/support/tensors.hpp"

#include <span>
#include <vector>

namespace tree_attn::test {

/// A copy of a tensor in memory of the current device.
class DeviceTensor {
 public:
  explicit DeviceTensor(const Tensor& tensor)
      : like_(tensor.view()), memory_(static_cast<std::int64_t>(tensor.bytes.size())) {
    memory_.upload(std::span<const std::byte>(tensor.bytes));
  }
  TensorView view() const {
    TensorView view = like_;
    view.data = memory_.data();
    view.on_device = true;
    return view;
  }
  std::vector<std::byte> bytes() const { return memory_.download(); }

 private:
  TensorView like_;
  emulated::DeviceBuffer<std::byte> memory_;
};

/// Bytes copied between host and device by a call.
struct Copied {
  std::int64_t up = 0, down = 0;
};
template <class Call>
Copied copied_by(const Call& call) {
  const DeviceTraffic& all = emulated::traffic();
  const std::int64_t up = all.bytes_uploaded, down = all.bytes_downloaded;
  call();
  return {all.bytes_uploaded - up, all.bytes_downloaded - down};
}

}  // namespace tree_attn::test
