// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The buffers of the emulated device, with gaps of NaN between them.
#include "gpu/emulator/global_memory.hpp"

#include "gpu/emulator/failure.hpp"
#include "gpu/emulator/random.hpp"
#include "gpu/emulator/sanitizer.hpp"
#include "gpu/emulator/settings.hpp"

#include <cstring>
#include <map>
#include <mutex>
#include <new>

namespace tree_attn::emulated::runtime {

constinit thread_local SeenBuffers seen_buffers;

namespace {

constexpr std::size_t kAlignment = 256;
/// Between buffers lies a gap on either side, never zero-filled: what lies behind an end must not look like numbers.
constexpr std::size_t kGap = 1024;

std::mutex registry_mutex;
std::map<std::uintptr_t, std::size_t> registry;  // first byte -> number of bytes
std::uint64_t generation = 1;

}  // namespace

void* allocate_global(std::size_t n_bytes) {
  const std::size_t whole = kGap + (n_bytes + kAlignment - 1) / kAlignment * kAlignment + kGap;
  auto* const memory = static_cast<std::byte*>(::operator new (whole, std::align_val_t{kAlignment}));
  const std::uint16_t nan = poison(settings().seed);
  for (std::size_t i = 0; i < whole; i += sizeof nan) std::memcpy(memory + i, &nan, sizeof nan);
  forbid(memory, kGap);
  forbid(memory + kGap + n_bytes, whole - kGap - n_bytes);
  const std::lock_guard lock(registry_mutex);
  registry[reinterpret_cast<std::uintptr_t>(memory + kGap)] = n_bytes;
  ++generation;
  return memory + kGap;
}

void free_global(void* buffer) {
  if (buffer == nullptr) return;
  std::byte* const memory = static_cast<std::byte*>(buffer) - kGap;
  {
    const std::lock_guard lock(registry_mutex);
    const auto found = registry.find(reinterpret_cast<std::uintptr_t>(buffer));
    allow(memory, kGap + (found->second + kAlignment - 1) / kAlignment * kAlignment + kGap);
    registry.erase(found);
    ++generation;
  }
  ::operator delete (memory, std::align_val_t{kAlignment});
}

void forget_seen_buffers() {
  const Unwatched unwatched;
  const std::lock_guard lock(registry_mutex);
  if (seen_buffers.generation == generation) return;
  seen_buffers = {};
  seen_buffers.generation = generation;
}

void find_global(std::uintptr_t from, std::size_t n_bytes, const char* word, const Line& line) {
  const Unwatched unwatched;
  {
    const std::lock_guard lock(registry_mutex);
    auto found = registry.upper_bound(from);
    if (found != registry.begin()) {
      --found;
      const std::uintptr_t low = found->first, high = low + found->second;
      if (from >= low && from + n_bytes <= high) {
        seen_buffers.range[seen_buffers.next] = {low, high};
        seen_buffers.next = (seen_buffers.next + 1) % SeenBuffers::kCount;
        return;
      }
      if (from >= low && from < high + kGap) {
        fail(line, std::string(word) + " reads bytes " + std::to_string(from - low) + " to " +
                       std::to_string(from - low + n_bytes) + " of a buffer of " + std::to_string(high - low));
      }
    }
  }
  fail(line, std::string(word) + " reads memory that lies in no buffer of the device");
}

}  // namespace tree_attn::emulated::runtime
