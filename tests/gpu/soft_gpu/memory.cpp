// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Allocations of the device in software, and what an access of a kernel may touch.
#include "tests/gpu/soft_gpu/memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>

namespace tree_attn::soft_gpu {

std::string hex(std::uint64_t address) {
  std::ostringstream text;
  text << "0x" << std::hex << address;
  return text.str();
}

namespace memory {
namespace {

constexpr std::uint64_t kGap = 512;  // between allocations, and their alignment: what leaves one does not enter the next
constexpr std::uint64_t kFilled =
    1 << 20;  // bytes of an allocation that begin as NaN: to touch all of a large one takes longer than kernels
constexpr std::uint64_t kPage = 4096;

/// The bytes of the device; addresses are reserved a second time for it.
struct Store {
  std::uint64_t next = reserve(PROT_NONE), to_host = reserve(PROT_READ | PROT_WRITE) - next;
  const std::uint64_t end = next + kBytesOfDevice;
  std::shared_mutex mutex;
  std::map<std::uint64_t, Range> ranges;

  static std::uint64_t reserve(int protection) {
    void* const place = mmap(nullptr, kBytesOfDevice, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED) throw std::runtime_error("soft_gpu: no addresses for the memory of the device");
    return reinterpret_cast<std::uint64_t>(place);
  }
};

Store& store() {
  static Store* const only = new Store;  // outlives what programs free as they end
  return *only;
}

}  // namespace

std::optional<std::uint64_t> allocate(std::uint64_t n_bytes) {
  Store& all = store();
  const std::unique_lock lock(all.mutex);
  if (n_bytes > all.end - all.next) return std::nullopt;
  const std::uint64_t at = all.next;
  const Range range{at, at + n_bytes, all.to_host};
  std::memset(range.host(at), 0xFF, std::min(n_bytes, kFilled));
  all.ranges[at] = range;
  all.next = std::min(all.end, (range.end + 2 * kGap - 1) / kGap * kGap);
  return at;
}

std::uint64_t n_free() {
  Store& all = store();
  const std::shared_lock lock(all.mutex);
  return all.end - all.next;
}

void pin(void* begin, std::uint64_t n_bytes) {
  Store& all = store();
  const std::unique_lock lock(all.mutex);
  const auto at = reinterpret_cast<std::uint64_t>(begin);
  all.ranges[at] = {at, at + n_bytes, 0};
}

bool release(std::uint64_t begin) {
  Store& all = store();
  const std::unique_lock lock(all.mutex);
  const auto found = all.ranges.find(begin);
  if (found == all.ranges.end()) return false;
  // Whole pages go back to the system.
  const std::uint64_t from = (begin + kPage - 1) / kPage * kPage, to = found->second.end / kPage * kPage;
  if (!found->second.is_of_host() && to > from) madvise(found->second.host(from), to - from, MADV_DONTNEED);
  all.ranges.erase(found);
  return true;
}

std::optional<Range> find(std::uint64_t address) {
  Store& all = store();
  const std::shared_lock lock(all.mutex);
  auto after = all.ranges.upper_bound(address);
  if (after == all.ranges.begin() || !(--after)->second.holds(address, 0)) return std::nullopt;
  return after->second;
}

std::string around(std::uint64_t address) {
  Store& all = store();
  const std::shared_lock lock(all.mutex);
  const auto after = all.ranges.upper_bound(address);
  if (after == all.ranges.begin()) return "no allocation before it";
  const Range& range = std::prev(after)->second;
  const std::string size = std::to_string(range.end - range.begin) + " bytes at " + hex(range.begin);
  if (address < range.end) return std::to_string(range.end - address) + " bytes before the end of " + size;
  return std::to_string(address - range.end) + " bytes after the end of " + size;
}

}  // namespace memory
}  // namespace tree_attn::soft_gpu
