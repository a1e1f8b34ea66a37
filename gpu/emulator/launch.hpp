// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The emulated side of gpu/platform/launch.hpp.
#pragma once

#include "gpu/emulator/global_memory.hpp"
#include "gpu/emulator/grid.hpp"
#include "gpu/emulator/settings.hpp"
#include "gpu/emulator/stream.hpp"
#include "gpu/emulator/tensor_map.hpp"
#include "gpu/types/device_error.hpp"
#include "gpu/types/device_part.hpp"
#include "gpu/types/memory_use.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace tree_attn::emulated {

/// Properties of the current device that a launch layer needs.
struct Device {
  std::string name;
  int n_multiprocessors = 0;
  std::size_t shared_bytes = 0;  ///< dynamic shared memory that one block may have
  int major = 0;                 ///< of the compute capability
};

inline Device device() {
  runtime::make_context();
  const int part = DevicePart::n_multiprocessors();
  return {"emulator", part > 0 ? part : settings().n_multiprocessors, runtime::shared_bytes_of(settings()),
          settings().major};
}

/// Devices: how many there are, and which one this host thread allocates and launches on. @throws DeviceError
inline int n_devices() { return settings().n_devices; }
inline void set_device(int device) { runtime::set_device(device); }
inline int current_device() { return runtime::current_device(); }
/// Flag: this process has used a device since the flag was last set to false. On a GPU the first use makes a context, which
/// takes memory there. set_device(), device(), memory, streams and launches are uses; n_devices(), current_device() and
/// gpu_names() are none.
inline std::atomic<bool>& has_context(int device) { return runtime::has_context(device); }
/// Kernels of the current device may reach windows of another from now on. @throws DeviceError if they cannot
inline void enable_peer_access(int other) {
  if (!settings().has_peer_access) throw DeviceError("enable_peer_access: the devices do not reach each other");
  runtime::enable_peer_access(current_device(), other);
}

/// A word of host memory that kernels of every device read while host threads write it. Starts as 0.
class HostWord {
 public:
  HostWord() : word_(static_cast<unsigned*>(runtime::allocate_global(sizeof(unsigned), MemoryUse::HostWord))) { store(0); }
  HostWord(const HostWord&) = delete;
  HostWord& operator=(const HostWord&) = delete;
  ~HostWord() { runtime::free_global(word_); }
  void store(unsigned value) { std::atomic_ref(*word_).store(value, std::memory_order_release); }
  const unsigned* on_device() const { return word_; }

 private:
  unsigned* word_;
};

/// A window of another process, as memory of a device that is none of this one.
class OpenedWindow {
 public:
  /// @param n_bytes of that window @throws DeviceError if it cannot be reached
  OpenedWindow(const WindowHandle& handle, std::size_t n_bytes) : data_(runtime::open_window(handle, n_bytes)) {}
  OpenedWindow(OpenedWindow&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  OpenedWindow& operator=(OpenedWindow&&) = delete;
  ~OpenedWindow() { runtime::close_window(data_); }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

/// Bytes that kernels of this device have stored into windows of others; nothing where that is not counted.
inline std::optional<std::int64_t> bytes_to_peers() { return runtime::bytes_to_peers(current_device()); }
/// The device of a host thread that decodes as one rank of several. The emulator has as many devices as are asked for, and
/// expects a host thread on each; beyond kMaxDevices threads share devices.
void use_device(int device);

/// As --backend takes it; whether device memory is memory of the host.
inline constexpr const char* kName = "emulated";
inline constexpr bool kIsHostMemory = true;

/// No GPU is one of its own.
inline std::vector<std::string> gpu_names() { return {}; }

/// n elements of host memory that copies read and write while the host does something else. Here memory like any other, but
/// a use of the device, which on a GPU pins it.
template <class T>
class HostBuffer {
 public:
  explicit HostBuffer(std::int64_t n) : elements_(static_cast<std::size_t>(n)) { runtime::make_context(); }
  T* data() { return elements_.data(); }
  std::int64_t size() const { return static_cast<std::int64_t>(elements_.size()); }
  std::span<const T> elements() const { return elements_; }
  /// The elements, to be written. @throws DeviceError if the host has not waited for a copy from here or to here
  std::span<T> to_write(const Line& line = Line::current()) {
    runtime::check_host_write(std::as_bytes(std::span(elements_)), line);
    return elements_;
  }

 private:
  std::vector<T> elements_;
};

/// Memory of the device, or of a library as a window.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(std::size_t n_bytes, MemoryUse use) : memory_(runtime::allocate_global(n_bytes, use)) {}
  DeviceMemory(void* memory, std::size_t n_bytes) : memory_(memory) { runtime::borrow_window(memory, n_bytes); }
  void* data() const { return memory_.get(); }
  WindowHandle handle() const { return runtime::handle_of(data()); }

 private:
  struct Free {
    void operator()(void* memory) const { runtime::free_global(memory); }
  };
  std::unique_ptr<void, Free> memory_;
};

using runtime::refuse_in_capture, runtime::synchronise_all;
/// Queues a copy of n_rows rows of n_bytes, each `pitch` bytes after the one before it.
void copy_rows(Stream stream, CopyKind kind, void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
               std::size_t n_bytes, std::size_t n_rows, const Line& line);
/// Queues a fill.
void fill_bytes(Stream stream, void* to, unsigned char byte, std::size_t n_bytes, const Line& line);

/// Clusters of a launch that the device holds at once, as if each block filled a multiprocessor.
template <class... Parameters>
int n_resident_clusters(void (*)(Parameters...), const Launch& config) {
  return device().major < 9 ? 0 : n_clusters(settings(), device().n_multiprocessors, config.cluster);
}

/// Queues a kernel; on the default stream it has run when this returns.
/// @throws DeviceError for a launch that no device could start, and with the first rule that a kernel broke that ran
/// meanwhile
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const Launch& config, Stream stream, Arguments&&... arguments) {
  const bool is_queued = runtime::queue_launch(
      runtime::queue_of(stream.queue), config,
      [kernel, all = std::tuple<Parameters...>(std::forward<Arguments>(arguments)...)] { std::apply(kernel, all); });
  traffic().n_launches += is_queued ? 1 : 0, n_launches_of_thread += is_queued ? 1 : 0;
}

}  // namespace tree_attn::emulated
