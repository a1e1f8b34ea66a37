// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Memory of the emulated device: buffers that know their ends, with gaps between them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/emulator/place.hpp"

namespace tree_attn::emulated::runtime {

/// A buffer, filled with NaNs; a multiple of 256 as from cudaMalloc.
void* allocate_global(std::size_t n_bytes);
void free_global(void* buffer);

/// The buffers that a host thread has seen last: a kernel reads few.
struct SeenBuffers {
  static constexpr int kCount = 4;
  struct Range {
    std::uintptr_t low = 1, high = 0;
  };
  Range range[kCount];
  std::uint64_t generation = 0;  ///< of the registry when they were seen
  int next = 0;
};
extern constinit thread_local SeenBuffers seen_buffers;

/// Forgets them if buffers have come or gone since: before a host thread begins with a launch.
void forget_seen_buffers();

/// Looks the range up among all buffers. @throws DeviceError if it lies wholly in none
void find_global(std::uintptr_t from, std::size_t n_bytes, const char* word, const Line& line);

/// A kernel may read only what lies in one buffer.
/// @param n_bytes 0 asks for nothing and is always well
inline void check_global(const void* from, std::size_t n_bytes, const char* word, const Line& line) {
  const auto at = reinterpret_cast<std::uintptr_t>(from);
  for (const SeenBuffers::Range& range : seen_buffers.range) {
    if (range.low <= at && at + n_bytes <= range.high) return;
  }
  if (n_bytes > 0) find_global(at, n_bytes, word, line);
}

}  // namespace tree_attn::emulated::runtime
