// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Memory of the emulated device: buffers that know their ends, with gaps between them.
#pragma once

#include "gpu/emulator/coordinates.hpp"
#include "gpu/emulator/footprint.hpp"
#include "gpu/types/memory_use.hpp"
#include "gpu/types/window_handle.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tree_attn::emulated::runtime {

/// A buffer, filled with NaNs, or a window with ones; a multiple of 256 as from cudaMalloc. Scratch is filled again when a
/// launch first touches it.
void* allocate_global(std::size_t n_bytes, MemoryUse use);
/// Allocations of this host thread before one fails by a DeviceError, once, as on a device that is full; -1: none fails.
extern constinit thread_local std::int64_t n_allocations_left;
void free_global(void* buffer);

/// Windows lie in pages that other processes map: see DeviceBuffer::handle(), OpenedWindow.
WindowHandle handle_of(const void* window);
void* open_window(const WindowHandle& handle, std::size_t n_bytes);
/// Memory of a library as a window of the current device. Ended by free_global().
void borrow_window(void* memory, std::size_t n_bytes);
void close_window(void* window);
/// Tests whether windows of other processes are open, so that those processes may store into windows of this one at any
/// time.
bool others_may_store();

/// Bytes that kernels of a device have stored into windows of others: its part of DeviceTraffic::bytes_to_peers.
std::atomic<std::int64_t>& bytes_to_peers(int device);

/// The last launch that read, or wrote, a buffer by a function of device.hpp, and the one before it that did.
struct LaunchMark {
  std::atomic<std::uint64_t> last = 0, before = 0;
};
/// The last launch that wrote some bytes of a buffer: one number for every kBytesOfWriter of them.
using Writers = std::atomic<std::uint64_t>[];
inline constexpr std::size_t kBytesOfWriter = 16;

/// The buffers that a host thread has seen last: a kernel reads few.
struct SeenBuffers {
  static constexpr int kCount = 4;
  struct Range {
    std::uintptr_t low = 1, high = 0;
    MemoryUse use = MemoryUse::Persistent;
    bool* written = nullptr;  ///< [high - low] in scratch, in shadow mode: bytes that this launch has written
    LaunchMark *reader = nullptr, *writer = nullptr;
    std::atomic<std::uint64_t>* writers = nullptr;  ///< null before a launch writes
    bool is_far = false;                            ///< a window of another device
    Touched* touched = nullptr;                     ///< by this launch, where there are streams to race with
  };
  Range range[kCount];
  int next = 0;
};
extern constinit thread_local SeenBuffers seen_buffers;

/// Forgets them: before a host thread begins with a launch.
void forget_seen_buffers();

/// The buffer that the bytes lie in, among all. @throws DeviceError if they lie wholly in none
SeenBuffers::Range& find_global(std::uintptr_t at, std::size_t n_bytes, Reach reach, const char* word, const Line& line);
/// The footprint of a copy. @throws DeviceError if the bytes lie wholly in no buffer
void note_copy(Footprint& footprint, const std::byte* at, std::size_t n_bytes, Reach reach, const char* word,
               const Line& line);
/// @throws DeviceError if the use of the buffer, or a launch before this one that may still run, forbids this
void check_use(SeenBuffers::Range& range, std::uintptr_t at, std::size_t n_bytes, Reach reach, const char* word,
               const Line& line);

/// A kernel may reach only what lies in one buffer, and only as its use allows.
/// @param n_bytes 0 asks for nothing and is always well
inline void check_global(const void* address, std::size_t n_bytes, Reach reach, const char* word, const Line& line) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  SeenBuffers::Range* found = nullptr;
  for (SeenBuffers::Range& range : seen_buffers.range) {
    if (range.low <= at && at + n_bytes <= range.high) found = &range;
  }
  if (found == nullptr && n_bytes > 0) found = &find_global(at, n_bytes, reach, word, line);
  if (found == nullptr) return;
  if (found->use != MemoryUse::Input || reach >= Reach::kWrite) check_use(*found, at, n_bytes, reach, word, line);
  if (found->touched != nullptr) found->touched->note(at - found->low, n_bytes, reach, word, line);
}

}  // namespace tree_attn::emulated::runtime
