// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Asynchronous copies that really are late: the bytes are NaN until the wait that covers them.
#include "tree_attn/gpu/platform/emulator/global_memory.hpp"
#include "tree_attn/gpu/platform/emulator/sanitizer.hpp"
#include "tree_attn/gpu/platform/emulator/shadow.hpp"
#include "tree_attn/gpu/platform/emulator/thread.hpp"

#include <cstring>
#include <string>

namespace tree_attn::emulated::runtime {

void copy_async(std::byte* to, int size, const void* from, int n_bytes, const char* word, const Line& line) {
  const Unwatched unwatched;
  const auto n = static_cast<std::size_t>(size);
  if (n_bytes < 0 || n_bytes > size) {
    fail(line,
         std::string(word) + ": " + std::to_string(n_bytes) + " bytes; 0 to " + std::to_string(size) + " can be copied");
  }
  // A power of two: a division would take longer than the copy.
  if (((reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from)) & (n - 1)) != 0) {
    fail(line, std::string(word) + ": an address is not a multiple of " + std::to_string(size));
  }
  check_global(from, static_cast<std::size_t>(n_bytes), Reach::kRead, word, line);
  check_taken(to, n, word, line);
  shadow::issue(to, n, line);
  note_write(to, n);
  fill_with_poison(*running->block->cluster, to, n);
  forbid(to, n);
  running->copies.push_back({to, n, from, n_bytes, running->group, line});
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
    allow(copy.to, copy.size);
    note_read(copy.from, n_bytes);
    note_write(copy.to, copy.size);
    if (n_bytes > 0) std::memcpy(copy.to, copy.from, n_bytes);
    std::memset(copy.to + n_bytes, 0, copy.size - n_bytes);
    shadow::land(copy.to, copy.size, copy.line);
  }
  copies.erase(copies.begin(), copies.begin() + static_cast<std::ptrdiff_t>(n_arrived));
}

}  // namespace tree_attn::emulated::runtime
