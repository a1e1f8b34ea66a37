// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The host side of a kernel: memory on the device, streams, launches.
///
/// | word | meaning |
/// | --- | --- |
/// | `DeviceBuffer<T>` | n elements of device memory for a MemoryUse, freed at the end; `upload`, `upload_rows`, `download`, `fill`, `handle` |
/// | `HostBuffer<T>` | n elements of host memory for copies that are queued; pinned on a GPU; `to_write` once those copies have run |
/// | `queue_upload queue_copy queue_download` | the same copies, and copies on the device, queued on a stream |
/// | `Stream` | where launches and copies queue; a default one is the default stream |
/// | `OwnedStream synchronise` | a stream of its own, which the default stream does not wait for; waits for a stream |
/// | `Event` | `record` sets a mark in a stream, `record_in_graph` one in a graph, `hold` makes another wait for it, and `has_passed` asks without waiting |
/// | `LibraryStream` | a stream as a library such as NCCL takes it: its `handle`; the stream `of` a handle of another program, and whether it `is_captured` |
/// | `Graph drop_capture` | records what is queued on a stream and queues it again: `replay`; ends a recording |
/// | `Launch` | grid, block, bytes of dynamic shared memory, blocks per cluster, whether it continues or overlaps the last, whether its blocks wait for each other |
/// | `launch(kernel, Launch, stream, args...)` | starts a kernel; a status that is not well is a DeviceError |
/// | `n_resident_clusters(kernel, Launch)` | clusters of such a launch that the device holds at once; 0 where it has none |
/// | `encode_tensor_map(TensorArray, TensorMap*)` | writes the TensorMap that a kernel passes to bulk_copy_tensor() |
/// | `DeviceTraffic& traffic()` | allocations, uploads, bytes copied, launches and replays so far |
/// | `bytes_to_peers()` | bytes that kernels of the current device have stored into windows of others, where they are counted |
/// | `kName`, `kIsHostMemory` | the platform's name as a backend, and where its memory is |
/// | `gpu_names()` | GPUs that were found |
/// | `n_devices set_device current_device` | the devices, and the one that this host thread allocates and launches on |
/// | `use_device` | the same for a host thread that is one rank of several |
/// | `enable_peer_access` | lets kernels of the current device reach windows (MemoryUse::Window) of another |
/// | `HostWord` | a word of host memory that kernels read while host threads write it |
/// | `OpenedWindow` | a window of another process, opened by its handle |
/// | `Device device()` | the current one: name, number of multiprocessors, shared memory a block may have, major version of its kernels |
#pragma once

#include "gpu/types/device_error.hpp"
#include "gpu/types/device_traffic.hpp"
#include "gpu/types/memory_use.hpp"
#include "gpu/types/platform.hpp"
#include "gpu/types/window_handle.hpp"

#if defined(__CUDACC__) || defined(TREE_ATTN_FOR_CUDA)
#include "gpu/platform/cuda/launch.hpp"
#else
#include "gpu/emulator/launch.hpp"
#endif

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// n elements of device memory. A new buffer holds NaNs in the emulator; on a GPU its contents are undefined.
///
/// Copies of rows take `width` elements a row, at intervals of `pitch` elements in this buffer and of `from_pitch` or
/// `to_pitch` on the other side. A queued copy reads or writes host memory when the stream reaches it. @throws DeviceError
/// for a copy past the end of a buffer
template <class T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::int64_t n, MemoryUse use = MemoryUse::Persistent) : n_(n) {
    if (n > 0) memory_ = DeviceMemory(bytes(n), use), ++traffic().n_allocations;
  }
  /// n elements of a library's memory, as a window: not freed at the end.
  DeviceBuffer(void* memory, std::int64_t n) : memory_(memory, bytes(n)), n_(n) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept : memory_(std::move(other.memory_)), n_(std::exchange(other.n_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    memory_ = std::move(other.memory_);
    n_ = std::exchange(other.n_, 0);
    return *this;
  }

  T* data() const { return static_cast<T*>(memory_.data()); }
  std::int64_t size() const { return n_; }
  /// Handle by which another process opens the window. @throws DeviceError if it is no window, or the machine has no CUDA
  /// IPC
  WindowHandle handle() const { return memory_.handle(); }

  /// Copies from the host, after all that is queued on the default stream; the bytes are there when it returns.
  void upload(std::span<const T> from, std::int64_t at = 0, const Line& line = Line::current()) {
    upload_rows(from.data(), 0, at, 0, std::ssize(from), 1, line);
  }
  void upload_rows(const T* from, std::int64_t from_pitch, std::int64_t at, std::int64_t pitch, std::int64_t width,
                   std::int64_t n_rows, const Line& line = Line::current()) {
    refuse_in_capture("a copy that blocks");
    if (!has_rows("upload", at, pitch, width, n_rows)) return;
    copy(Stream{}, CopyKind::Upload, data() + at, pitch, from, from_pitch, width, n_rows, line);
    synchronise(Stream{}, line);
  }
  void queue_upload(Stream stream, std::span<const T> from, std::int64_t at = 0, const Line& line = Line::current()) {
    if (has_rows("upload", at, 0, std::ssize(from), 1))
      copy(stream, CopyKind::Upload, data() + at, 0, from.data(), 0, std::ssize(from), 1, line);
  }
  /// Copies rows of another buffer on the device, queued.
  void queue_copy(Stream stream, const DeviceBuffer& from, std::int64_t from_at, std::int64_t from_pitch, std::int64_t at,
                  std::int64_t pitch, std::int64_t width, std::int64_t n_rows, const Line& line = Line::current()) {
    if (from.has_rows("copy", from_at, from_pitch, width, n_rows))
      queue_copy_in(stream, from.data() + from_at, from_pitch, at, pitch, width, n_rows, line);
  }
  /// Copies rows from device memory of another owner, and to it, queued.
  void queue_copy_in(Stream stream, const T* from, std::int64_t from_pitch, std::int64_t at, std::int64_t pitch,
                     std::int64_t width, std::int64_t n_rows, const Line& line = Line::current()) {
    if (has_rows("copy", at, pitch, width, n_rows))
      copy(stream, CopyKind::OnDevice, data() + at, pitch, from, from_pitch, width, n_rows, line);
  }
  void queue_copy_out(Stream stream, T* to, std::int64_t to_pitch, std::int64_t at, std::int64_t pitch, std::int64_t width,
                      std::int64_t n_rows, const Line& line = Line::current()) const {
    if (has_rows("copy", at, pitch, width, n_rows))
      copy(stream, CopyKind::OnDevice, to, to_pitch, data() + at, pitch, width, n_rows, line);
  }
  /// Copies elements from `at` on to the host, once all that is queued has run.
  void download(std::span<T> to, std::int64_t at = 0, const Line& line = Line::current()) const {
    synchronise_all();
    queue_download(Stream{}, to, at, line);
    synchronise(Stream{}, line);
  }
  /// Queues a copy of elements from `at` on to the host.
  void queue_download(Stream stream, std::span<T> to, std::int64_t at = 0, const Line& line = Line::current()) const {
    if (has_rows("download", at, 0, std::ssize(to), 1))
      copy(stream, CopyKind::Download, to.data(), 0, data() + at, 0, std::ssize(to), 1, line);
  }
  /// A copy of all of it on the host, once all that is queued has run.
  std::vector<T> download() const {
    std::vector<T> to(static_cast<std::size_t>(n_));
    download(to);
    return to;
  }
  /// Sets every byte, on the default stream or another.
  void fill(unsigned char byte, Stream stream = {}, const Line& line = Line::current()) {
    if (n_ > 0) fill_bytes(stream, data(), byte, bytes(n_), line);
  }

 private:
  static std::size_t bytes(std::int64_t n) { return static_cast<std::size_t>(n) * sizeof(T); }
  static void copy(Stream stream, CopyKind kind, T* to, std::int64_t to_pitch, const T* from, std::int64_t from_pitch,
                   std::int64_t width, std::int64_t n_rows, const Line& line) {
    copy_rows(stream, kind, to, bytes(to_pitch), from, bytes(from_pitch), bytes(width), static_cast<std::size_t>(n_rows),
              line);
  }
  /// Tests whether there is anything to copy. @throws DeviceError if the rows do not lie in this buffer
  bool has_rows(const char* word, std::int64_t at, std::int64_t pitch, std::int64_t width, std::int64_t n_rows) const {
    if (width <= 0 || n_rows <= 0) return false;
    if (at < 0 || at + (n_rows - 1) * pitch + width > n_)
      throw DeviceError(std::string(word) + ": past the end of the buffer");
    return true;
  }

  DeviceMemory memory_;
  std::int64_t n_ = 0;
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
