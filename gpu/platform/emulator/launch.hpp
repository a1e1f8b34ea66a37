// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The emulated side of gpu/platform/launch.hpp.
#pragma once

#include "tree_attn/gpu/platform/device_error.hpp"
#include "tree_attn/gpu/platform/device_part.hpp"
#include "tree_attn/gpu/platform/emulator/global_memory.hpp"
#include "tree_attn/gpu/platform/emulator/grid.hpp"
#include "tree_attn/gpu/platform/emulator/settings.hpp"
#include "tree_attn/gpu/platform/emulator/stream.hpp"
#include "tree_attn/gpu/platform/emulator/tensor_map.hpp"
#include "tree_attn/gpu/platform/memory_use.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace tree_attn::emulated {

/// What a launch layer asks of the device at hand.
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
/// Whether this process has used a device since this was last set to false. On a GPU the first use makes a context, which
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
  HostWord() : word_(static_cast<unsigned*>(runtime::allocate_global(sizeof(unsigned), MemoryUse::HostWindow))) { store(0); }
  HostWord(const HostWord&) = delete;
  HostWord& operator=(const HostWord&) = delete;
  ~HostWord() { runtime::free_global(word_); }
  void store(unsigned value) { std::atomic_ref(*word_).store(value, std::memory_order_release); }
  const unsigned* on_device() const { return word_; }

 private:
  unsigned* word_;
};

/// A window of another rank, as memory of a device that is none of this process.
class OpenedWindow {
 public:
  /// Of another process. @param n_bytes, use of that window @throws DeviceError if it cannot be reached
  OpenedWindow(const WindowHandle& handle, std::size_t n_bytes, MemoryUse use)
      : data_(runtime::open_window(handle, n_bytes, use)) {}
  /// Where a library has mapped it.
  OpenedWindow(void* memory, std::size_t n_bytes) : data_(memory) { runtime::borrow_window(memory, n_bytes, false); }
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
  /// The same, to be written. @throws DeviceError if the host has not waited for a copy from here or to here
  std::span<T> to_write(const Line& line = Line::current()) {
    runtime::check_host_write(std::as_bytes(std::span(elements_)), line);
    return elements_;
  }

 private:
  std::vector<T> elements_;
};

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
  /// n elements of a library's memory, as a window: not freed at the end.
  DeviceBuffer(void* memory, std::int64_t n) : data_(static_cast<T*>(memory)), n_(n) {
    runtime::borrow_window(memory, bytes(n), true);
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), n_(std::exchange(other.n_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_), std::swap(n_, other.n_);
    return *this;
  }
  ~DeviceBuffer() { runtime::free_global(data_); }

  T* data() const { return data_; }
  std::int64_t size() const { return n_; }
  /// What another process opens it by. @throws DeviceError if it is no window
  WindowHandle handle() const { return runtime::handle_of(data_); }
  /// Copies from the host. @throws DeviceError if it does not fit
  void upload(std::span<const T> from, std::int64_t at = 0, const Line& line = Line::current()) {
    upload_rows(from.data(), 0, at, 0, static_cast<std::int64_t>(from.size()), 1, line);
  }
  /// Copies n_rows rows of `width` elements from the host, each `pitch` elements after the one before it here, `from_pitch`
  /// there.
  /// @throws DeviceError if they do not fit
  void upload_rows(const T* from, std::int64_t from_pitch, std::int64_t at, std::int64_t pitch, std::int64_t width,
                   std::int64_t n_rows, const Line& line = Line::current()) {
    runtime::refuse_in_capture("a copy that blocks");
    queue_upload(Stream{}, from, from_pitch, at, pitch, width, n_rows, line);
    synchronise(Stream{}, line);
  }
  /// The same, queued: the host's memory is read when the stream gets there.
  void queue_upload(Stream stream, const T* from, std::int64_t from_pitch, std::int64_t at, std::int64_t pitch,
                    std::int64_t width, std::int64_t n_rows, const Line& line = Line::current()) {
    if (n_rows <= 0 || width <= 0) return;
    check_rows("upload", at, pitch, width, n_rows);
    const std::size_t n_bytes = bytes(width), n = static_cast<std::size_t>(n_rows);
    runtime::queue_copy(
        runtime::queue_of(stream.queue), "upload", {as_bytes(data_ + at), bytes(pitch), true},
        {as_bytes(const_cast<T*>(from)), bytes(from_pitch)}, n_bytes, n,
        [=] { ++traffic().n_uploads, traffic().bytes_uploaded += static_cast<std::int64_t>(n * n_bytes); }, line);
  }
  void queue_upload(Stream stream, std::span<const T> from, std::int64_t at = 0, const Line& line = Line::current()) {
    queue_upload(stream, from.data(), 0, at, 0, static_cast<std::int64_t>(from.size()), 1, line);
  }
  /// Copies rows of another buffer on the device, queued. @throws DeviceError if they do not fit
  void queue_copy(Stream stream, const DeviceBuffer& from, std::int64_t from_at, std::int64_t from_pitch, std::int64_t at,
                  std::int64_t pitch, std::int64_t width, std::int64_t n_rows, const Line& line = Line::current()) {
    if (n_rows <= 0 || width <= 0) return;
    from.check_rows("copy", from_at, from_pitch, width, n_rows);
    queue_copy_in(stream, from.data_ + from_at, from_pitch, at, pitch, width, n_rows, line);
  }
  /// Copies rows from device memory of another owner, and to it, queued. @throws DeviceError if they do not fit
  void queue_copy_in(Stream stream, const T* from, std::int64_t from_pitch, std::int64_t at, std::int64_t pitch,
                     std::int64_t width, std::int64_t n_rows, const Line& line = Line::current()) {
    if (n_rows <= 0 || width <= 0) return;
    check_rows("copy", at, pitch, width, n_rows);
    runtime::queue_copy(
        runtime::queue_of(stream.queue), "copy", {as_bytes(data_ + at), bytes(pitch), true},
        {as_bytes(const_cast<T*>(from)), bytes(from_pitch), true}, bytes(width), static_cast<std::size_t>(n_rows), [] {},
        line);
  }
  void queue_copy_out(Stream stream, T* to, std::int64_t to_pitch, std::int64_t at, std::int64_t pitch, std::int64_t width,
                      std::int64_t n_rows, const Line& line = Line::current()) const {
    if (n_rows <= 0 || width <= 0) return;
    check_rows("copy", at, pitch, width, n_rows);
    runtime::queue_copy(
        runtime::queue_of(stream.queue), "copy", {as_bytes(to), bytes(to_pitch), true},
        {as_bytes(data_ + at), bytes(pitch), true}, bytes(width), static_cast<std::size_t>(n_rows), [] {}, line);
  }
  /// Copies elements from `at` on to the host, once all that is queued has run. @throws DeviceError if they are not there
  void download(std::span<T> to, std::int64_t at = 0, const Line& line = Line::current()) const {
    runtime::synchronise_all();
    queue_download(Stream{}, to, at, line);
    synchronise(Stream{}, line);
  }
  /// The same, queued: `to` is written when the stream gets there.
  void queue_download(Stream stream, std::span<T> to, std::int64_t at = 0, const Line& line = Line::current()) const {
    if (to.empty()) return;
    check_rows("download", at, 0, static_cast<std::int64_t>(to.size()), 1);
    const std::size_t n_bytes = to.size_bytes();
    runtime::queue_copy(
        runtime::queue_of(stream.queue), "download", {as_bytes(to.data())}, {as_bytes(data_ + at), 0, true}, n_bytes, 1,
        [=] { traffic().bytes_downloaded += static_cast<std::int64_t>(n_bytes); }, line);
  }
  /// A copy of all of it on the host.
  std::vector<T> download() const {
    runtime::synchronise_all();
    return std::vector<T>(data_, data_ + n_);
  }
  /// Sets every byte, on the default stream or another.
  void fill(unsigned char byte, Stream stream = {}, const Line& line = Line::current()) {
    if (n_ > 0) runtime::queue_fill(runtime::queue_of(stream.queue), as_bytes(data_), byte, bytes(n_), line);
  }

 private:
  static std::byte* as_bytes(T* at) { return reinterpret_cast<std::byte*>(at); }
  static std::size_t bytes(std::int64_t n) { return static_cast<std::size_t>(n) * sizeof(T); }
  void check_rows(const char* word, std::int64_t at, std::int64_t pitch, std::int64_t width, std::int64_t n_rows) const {
    if (at < 0 || at + (n_rows - 1) * pitch + width > n_)
      throw DeviceError(std::string(word) + ": past the end of the buffer");
  }

  T* data_ = nullptr;
  std::int64_t n_ = 0;
};

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
