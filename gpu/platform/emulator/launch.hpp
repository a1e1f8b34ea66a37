// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The emulated side of gpu/platform/launch.hpp.
#pragma once

#include "gpu/platform/device_error.hpp"
#include "gpu/platform/device_traffic.hpp"
#include "gpu/platform/emulator/global_memory.hpp"
#include "gpu/platform/emulator/grid.hpp"
#include "gpu/platform/emulator/settings.hpp"
#include "gpu/platform/emulator/tensor_map.hpp"
#include "gpu/platform/memory_use.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

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

inline Device device() { return {"emulator", settings().n_multiprocessors, kMaxSharedBytes, settings().major}; }

/// As --backend takes it; whether device memory is memory of the host.
inline constexpr const char* kName = "emulated";
inline constexpr bool kIsHostMemory = true;

/// No GPU is one of its own.
inline std::vector<std::string> gpu_names() { return {}; }

/// What the host has asked of device memory.
inline DeviceTraffic& traffic() {
  static DeviceTraffic counts;
  return counts;
}

/// n numbers of device memory. Contents start as NaNs.
template <class T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::int64_t n, MemoryUse use = MemoryUse::Persistent) : n_(n) {
    if (n <= 0) return;
    data_ = static_cast<T*>(runtime::allocate_global(static_cast<std::size_t>(n) * sizeof(T), use));
    ++traffic().n_allocations;
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
    upload_rows(from.data(), 0, at, 0, static_cast<std::int64_t>(from.size()), 1);
  }
  /// Copies n_rows rows of `width` elements from the host, each `pitch` elements after the one before it here, `from_pitch`
  /// there.
  /// @throws DeviceError if they do not fit
  void upload_rows(const T* from, std::int64_t from_pitch, std::int64_t at, std::int64_t pitch, std::int64_t width,
                   std::int64_t n_rows) {
    if (n_rows <= 0) return;
    if (at < 0 || at + (n_rows - 1) * pitch + width > n_) throw DeviceError("upload: past the end of the buffer");
    for (std::int64_t row = 0; row < n_rows && width > 0; ++row) {
      std::memcpy(data_ + at + row * pitch, from + row * from_pitch, static_cast<std::size_t>(width) * sizeof(T));
    }
    traffic().bytes_uploaded += n_rows * width * static_cast<std::int64_t>(sizeof(T));
  }
  /// Copies elements from `at` on to the host. @throws DeviceError if they are not there
  void download(std::span<T> to, std::int64_t at = 0) const {
    if (at < 0 || at + static_cast<std::int64_t>(to.size()) > n_) throw DeviceError("download: past the end of the buffer");
    if (!to.empty()) std::memcpy(static_cast<void*>(to.data()), data_ + at, to.size_bytes());
    traffic().bytes_downloaded += static_cast<std::int64_t>(to.size_bytes());
  }
  /// A copy of all of it on the host.
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
void launch(void (*kernel)(Parameters...), const Launch& config, Stream, Arguments&&... arguments) {
  using Call = std::pair<void (*)(Parameters...), std::tuple<Parameters...>>;
  Call call{kernel, std::tuple<Parameters...>(std::forward<Arguments>(arguments)...)};
  runtime::Grid grid{.config = config,
                     .run_thread =
                         [](void* what) {
                           const Call& self = *static_cast<const Call*>(what);
                           std::apply(self.first, self.second);
                         },
                     .kernel_and_arguments = &call};
  runtime::run(grid);
}

}  // namespace tree_attn::emulated
