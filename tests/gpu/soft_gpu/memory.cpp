// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Allocations of the devices in software, and what an access of a kernel may touch.
#include "tree_attn/tests/gpu/soft_gpu/memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>

namespace tree_attn::soft_gpu {

std::string hex(std::uint64_t address) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address));
  return text;
}

namespace memory {
namespace {

constexpr std::uint64_t kGap = 512;  // between allocations, and their alignment: what leaves one does not enter the next
constexpr std::uint64_t kFilled =
    1 << 20;  // bytes of an allocation that begin as NaN: to touch all of a large one takes longer than kernels
constexpr int kMostDevices = 16;

std::uint64_t reserve(std::uint64_t n_bytes) {
  void* const place = mmap(nullptr, n_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return place == MAP_FAILED ? 0 : reinterpret_cast<std::uint64_t>(place);
}

/// The bytes of all devices are one file, which other processes map; addresses are reserved a second time for the device.
struct Store {
  int file = memfd_create("soft_gpu", MFD_CLOEXEC);
  std::uint64_t begin = 0, to_host = 0;
  std::shared_mutex mutex;
  std::map<std::uint64_t, Range> ranges;

  Store() {
    constexpr std::uint64_t kAll = kMostDevices * kBytesOfDevice;
    if (file < 0 || ftruncate(file, static_cast<off_t>(kAll)) != 0)
      throw std::runtime_error("soft_gpu: no file for the memory of devices");
    void* const bytes = mmap(nullptr, kAll, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    begin = reserve(kAll);
    if (bytes == MAP_FAILED || begin == 0) throw std::runtime_error("soft_gpu: no addresses for the memory of devices");
    to_host = reinterpret_cast<std::uint64_t>(bytes) - begin;
  }
  bool is_own(const Range& range) const { return range.device >= 0 && range.to_host == to_host; }
};

Store& store() {
  static Store* const only = new Store;  // outlives the streams that end with the process
  return *only;
}

}  // namespace

std::optional<std::uint64_t> allocate(int device, std::uint64_t n_bytes) {
  Store& all = store();
  const std::unique_lock lock(all.mutex);
  const std::uint64_t first = all.begin + static_cast<std::uint64_t>(device) * kBytesOfDevice, last = first + kBytesOfDevice;
  std::uint64_t at = first + kGap;
  for (auto range = all.ranges.lower_bound(first); range != all.ranges.end() && range->first < last; ++range) {
    if (range->first - at >= n_bytes + kGap && range->first > at) break;
    at = (range->second.end + 2 * kGap - 1) / kGap * kGap;
  }
  if (n_bytes > last - at - kGap || at + kGap > last) return std::nullopt;
  const Range range{at, at + n_bytes, all.to_host, device};
  std::memset(range.host(at), 0xFF, std::min(n_bytes, kFilled));
  all.ranges[at] = range;
  return at;
}

std::uint64_t n_free(int device) {
  Store& all = store();
  const std::shared_lock lock(all.mutex);
  std::uint64_t n = kBytesOfDevice;
  for (const auto& [begin, range] : all.ranges) n -= range.device == device && all.is_own(range) ? range.end - begin : 0;
  return n;
}

void pin(void* begin, std::uint64_t n_bytes) {
  Store& all = store();
  const std::unique_lock lock(all.mutex);
  const auto at = reinterpret_cast<std::uint64_t>(begin);
  all.ranges[at] = {at, at + n_bytes, 0, -1};
}

bool release(std::uint64_t begin) {
  Store& all = store();
  const std::unique_lock lock(all.mutex);
  const auto found = all.ranges.find(begin);
  if (found == all.ranges.end()) return false;
  const Range& range = found->second;
  if (all.is_own(range)) {
    // Whole pages go back to the system.
    const std::uint64_t page = 4096, from = (begin - all.begin + page - 1) / page * page,
                        to = (range.end - all.begin) / page * page;
    if (to > from)
      fallocate(all.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(from),
                static_cast<off_t>(to - from));
  } else if (range.device >= 0) {
    munmap(range.host(begin), range.end - begin);
  }
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

std::optional<Handle> handle_of(std::uint64_t begin) {
  const auto range = find(begin);
  if (!range || !store().is_own(*range) || range->begin != begin) return std::nullopt;
  return Handle{getpid(), store().file, range->device, begin - store().begin, range->end - begin};
}

std::optional<std::uint64_t> open(const Handle& handle) {
  const std::string path = "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.file);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  // Map whole pages: an allocation begins anywhere in one.
  const std::uint64_t page = 4096, skipped = handle.offset % page, n_mapped = handle.n_bytes + skipped;
  void* const bytes =
      mmap(nullptr, n_mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(handle.offset - skipped));
  close(file);
  const std::uint64_t place = reserve(n_mapped);
  if (bytes == MAP_FAILED || place == 0) return std::nullopt;
  Store& all = store();
  const std::unique_lock lock(all.mutex);
  const std::uint64_t begin = place + skipped;
  all.ranges[begin] = {begin, begin + handle.n_bytes, reinterpret_cast<std::uint64_t>(bytes) - place, handle.device};
  return begin;
}

}  // namespace memory
}  // namespace tree_attn::soft_gpu
