// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The emulated side of gpu/platform/launch.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpu/platform/device_error.hpp"
#include "gpu/platform/emulator/global_memory.hpp"
#include "gpu/platform/emulator/grid.hpp"
#include "gpu/platform/emulator/settings.hpp"
#include "gpu/platform/memory_use.hpp"

namespace tree_attn::emulated {

/// There is nothing to queue: a launch has ended when launch() returns.
struct Stream {};

/// What a launch layer asks of the device at hand.
struct Device {
  std::string name;
  int n_multiprocessors = 0;
  std::size_t shared_bytes = 0;  ///< dynamic shared memory that one block may have
  int major = 0;                 ///< compute capability, 8 or 9
};

inline Device device() { return {"emulator", settings().n_multiprocessors, kMaxSharedBytes, 9}; }

/// n numbers of device memory. Contents start as NaNs.
template <class T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::int64_t n, MemoryUse use = MemoryUse::Persistent) : n_(n) {
    if (n > 0) data_ = static_cast<T*>(runtime::allocate_global(static_cast<std::size_t>(n) * sizeof(T), use));
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), n_(std::exchange(other.n_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_), std::swap(n_, other.n_);
    return *this;
  }
  ~DeviceBuffer() { runtime::free_global(data_); }

  T* data() const { return data_; }
  std::int64_t size() const { return n_; }
  /// Copies from the host. @throws DeviceError if it does not fit
  void upload(std::span<const T> from, std::int64_t at = 0) {
    if (at < 0 || at + static_cast<std::int64_t>(from.size()) > n_) throw DeviceError("upload: past the end of the buffer");
    if (!from.empty()) std::memcpy(data_ + at, from.data(), from.size_bytes());
  }
  /// A copy on the host.
  std::vector<T> download() const { return std::vector<T>(data_, data_ + n_); }
  /// Sets every byte.
  void fill(unsigned char byte) {
    if (n_ > 0) std::memset(static_cast<void*>(data_), byte, static_cast<std::size_t>(n_) * sizeof(T));
  }

 private:
  T* data_ = nullptr;
  std::int64_t n_ = 0;
};

/// Runs a kernel to its end. @throws DeviceError with the first rule that it breaks
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const Launch& how, Stream, Arguments&&... arguments) {
  using Call = std::pair<void (*)(Parameters...), std::tuple<Parameters...>>;
  Call call{kernel, std::tuple<Parameters...>(std::forward<Arguments>(arguments)...)};
  runtime::Grid grid{.how = how,
                     .run_thread =
                         [](void* what) {
                           const Call& self = *static_cast<const Call*>(what);
                           std::apply(self.first, self.second);
                         },
                     .kernel_and_arguments = &call};
  runtime::run(grid);
}

}  // namespace tree_attn::emulated
