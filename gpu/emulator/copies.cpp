// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Asynchronous copies that really are late: the bytes are NaN until the wait that covers them.
#include "gpu/emulator/global_memory.hpp"
#include "gpu/emulator/sanitizer.hpp"
#include "gpu/emulator/shadow.hpp"
#include "gpu/emulator/thread.hpp"

#include <cstring>
#include <string>

namespace tree_attn::emulated::runtime {

void copy_async16(std::byte* to, const void* from, int n_bytes, const Line& line) {
  const Unwatched unwatched;
  if (n_bytes < 0 || n_bytes > 16) fail(line, "copy_async16: " + std::to_string(n_bytes) + " bytes; 0 to 16 can be copied");
  if ((reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from)) % 16 != 0)
    fail(line, "copy_async16: an address is not a multiple of 16");
  check_global(from, static_cast<std::size_t>(n_bytes), Reach::kRead, "copy_async16", line);
  check_taken(to, 16, "copy_async16", line);
  shadow::issue(to, 16, line);
  note_write(to, 16);
  fill_with(running->block->cluster->nan, to, 16);
  forbid(to, 16);
  running->copies.push_back({to, from, n_bytes, running->group, line});
}

void copy_async_commit() { ++running->group; }

void copy_async_wait(int n_pending) {
  const Unwatched unwatched;
  std::vector<AsyncCopy>& copies = running->copies;
  std::size_t n_arrived = 0;
  // A copy that belongs to no group yet is not waited for, whatever n_pending is.
  while (n_arrived < copies.size() && copies[n_arrived].group < running->group - n_pending) {
    const AsyncCopy& copy = copies[n_arrived++];
    const auto n_bytes = static_cast<std::size_t>(copy.n_bytes);
    allow(copy.to, 16);
    note_read(copy.from, n_bytes);
    note_write(copy.to, 16);
    if (n_bytes > 0) std::memcpy(copy.to, copy.from, n_bytes);
    std::memset(copy.to + n_bytes, 0, 16 - n_bytes);
    shadow::land(copy.to, 16, copy.line);
  }
  copies.erase(copies.begin(), copies.begin() + static_cast<std::ptrdiff_t>(n_arrived));
}

}  // namespace tree_attn::emulated::runtime
