// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The buffers of the emulated device, with gaps of NaN between them, and what may be done to them.
#include "gpu/emulator/global_memory.hpp"

#include "gpu/emulator/random.hpp"
#include "gpu/emulator/sanitizer.hpp"
#include "gpu/emulator/settings.hpp"
#include "gpu/emulator/stream.hpp"
#include "gpu/emulator/thread.hpp"
#include "gpu/types/device_error.hpp"
#include "gpu/types/shared_pages.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>

namespace tree_attn::emulated::runtime {

constinit thread_local SeenBuffers seen_buffers;

namespace {

constexpr std::size_t kAlignment = 256;
/// Between buffers lies a gap on either side, never zero-filled: what lies past an end must not look like numbers.
constexpr std::size_t kGap = 1024;

/// The device of a window of another process.
constexpr int kElsewhere = -1;

struct Buffer {
  std::size_t n_bytes = 0;
  MemoryUse use = MemoryUse::Persistent;
  int device = 0;
  SharedPages pages;                ///< of a window, with its gaps
  bool is_borrowed = false;         ///< whether a library owns the memory; then there are no gaps
  std::uint64_t scratch = 0;        ///< Grid::scratch of the launch that touched it last
  std::unique_ptr<bool[]> written;  ///< see SeenBuffers
  LaunchMark reader{}, writer{};
  std::unique_ptr<Writers> writers;  ///< see SeenBuffers
};

std::mutex registry_mutex;
std::map<std::uintptr_t, Buffer> registry;  // by the first byte
std::atomic<int> n_opened{0};               // windows of other processes

/// A buffer and the gaps around it.
std::size_t with_gaps(std::size_t n_bytes) { return kGap + (n_bytes + kAlignment - 1) / kAlignment * kAlignment + kGap; }

/// Makes ASan report every access to the gaps of a buffer.
void forbid_gaps(std::byte* memory, std::size_t n_bytes) {
  forbid(memory, kGap);
  forbid(memory + kGap + n_bytes, with_gaps(n_bytes) - kGap - n_bytes);
}

/// Scratch memory as a launch finds it.
void freshen(std::uintptr_t first, Buffer& buffer, const Grid& grid) {
  if (buffer.use != MemoryUse::Scratch || buffer.scratch == grid.scratch) return;
  buffer.scratch = grid.scratch;
  fill_with(poison(grid.settings.seed), reinterpret_cast<std::byte*>(first), buffer.n_bytes);
#if defined(TREE_ATTN_EMULATOR_SHADOW)
  buffer.written = std::make_unique<bool[]>(buffer.n_bytes);
#endif
}

/// A kernel reaches other devices through windows alone.
void check_far(const Buffer& buffer, const Grid& grid, const std::string& what, const Line& line) {
  if (buffer.device == kElsewhere) return;
  const std::string of =
      what + "memory of device " + std::to_string(buffer.device) + " from device " + std::to_string(grid.device);
  if (!is_window(buffer.use)) fail(line, of + ", which is no window");
  if (buffer.use == MemoryUse::Window && !has_peer_access(grid.device, buffer.device))
    fail(line, of + ", which has not enabled it: enable_peer_access()");
}

void mark(LaunchMark& mark, const Grid& grid) {
  if (mark.last.load(std::memory_order_relaxed) == grid.number) return;
  const Unwatched unwatched;
  const std::lock_guard lock(registry_mutex);
  if (mark.last == grid.number) return;
  mark.before = mark.last.load();
  mark.last = grid.number;
}
/// Tests whether the mark was left by a launch that may still run when this one begins.
bool is_from_running(const LaunchMark& mark, const Grid& grid) {
  const std::uint64_t last = mark.last, other = last == grid.number ? mark.before.load() : last;
  return other >= grid.running && other < grid.number;
}

/// The numbers of a buffer that an access reaches.
std::span<std::atomic<std::uint64_t>> writers_of(const SeenBuffers::Range& range, std::uintptr_t at, std::size_t n_bytes) {
  if (range.writers == nullptr) return {};
  const std::size_t first = (at - range.low) / kBytesOfWriter,
                    end = (at - range.low + n_bytes + kBytesOfWriter - 1) / kBytesOfWriter;
  return {range.writers + first, end - first};
}
/// The first launch writes to a buffer.
void make_writers(SeenBuffers::Range& range) {
  const Unwatched unwatched;
  const std::lock_guard lock(registry_mutex);
  std::unique_ptr<Writers>& writers = registry.at(range.low).writers;
  if (!writers) writers = std::make_unique<Writers>((range.high - range.low + kBytesOfWriter - 1) / kBytesOfWriter);
  range.writers = writers.get();
}

/// Marks the access. Before wait_for_previous_launch() a thread may read only bytes that no running launch writes, and write
/// only buffers that none accesses.
void check_overlap(SeenBuffers::Range& range, std::uintptr_t at, std::size_t n_bytes, Reach reach, const char* word,
                   const Line& line) {
  const Grid& grid = running->block->cluster->grid;
  const bool writes = reach >= Reach::kWrite;
  if (grid.running < grid.number && !running->waited) {
    const bool is_being_written =
        is_from_running(*range.writer, grid) &&
        (writes || std::ranges::any_of(writers_of(range, at, n_bytes), [&grid](const auto& writer) {
           return writer.load(std::memory_order_relaxed) >= grid.running &&
                  writer.load(std::memory_order_relaxed) <= grid.number;
         }));
    if (is_being_written || (writes && is_from_running(*range.reader, grid))) {
      fail(line, std::string(word) + (writes ? " writes" : " reads") +
                     " a buffer that the launch before this one may still " + (is_being_written ? "write" : "read") +
                     ": no wait_for_previous_launch()");
    }
  }
  mark(writes ? *range.writer : *range.reader, grid);
  if (!writes) return;
  if (range.writers == nullptr) make_writers(range);
  for (auto& writer : writers_of(range, at, n_bytes)) writer.store(grid.number, std::memory_order_relaxed);
}

}  // namespace

std::atomic<std::int64_t>& bytes_to_peers(int device) {
  static std::atomic<std::int64_t> of_device[kMaxDevices];
  return of_device[device];
}

constinit thread_local std::int64_t n_allocations_left = -1;

void* allocate_global(std::size_t n_bytes, MemoryUse use) {
  refuse_in_capture("an allocation");
  make_context();
  if (n_allocations_left >= 0 && n_allocations_left-- == 0)
    throw DeviceError("an allocation of " + std::to_string(n_bytes) + " bytes: out of memory, as the test asks");
  const std::size_t whole = with_gaps(n_bytes);
  SharedPages pages = is_window(use) ? SharedPages(whole) : SharedPages();
  auto* const memory =
      is_window(use) ? pages.data() : static_cast<std::byte*>(::operator new (whole, std::align_val_t{kAlignment}));
  fill_with(poison(settings().seed), memory, whole);
  // A window may lie where one has lain before, with packets of a first step in it.
  if (is_window(use)) std::fill_n(reinterpret_cast<std::uint32_t*>(memory + kGap), n_bytes / 4, 1u);
  forbid_gaps(memory, n_bytes);
  const std::lock_guard lock(registry_mutex);
  Buffer& buffer = registry[reinterpret_cast<std::uintptr_t>(memory + kGap)];
  buffer.n_bytes = n_bytes, buffer.use = use, buffer.device = current_device(), buffer.pages = std::move(pages);
  return memory + kGap;
}

void free_global(void* buffer) {
  if (buffer == nullptr) return;
  make_context();
  // The device may still use it.
  synchronise_all_quietly();
  forget_footprints(reinterpret_cast<std::uintptr_t>(buffer));
  std::byte* const memory = static_cast<std::byte*>(buffer) - kGap;
  const auto node = [buffer] {
    const std::lock_guard lock(registry_mutex);
    return registry.extract(reinterpret_cast<std::uintptr_t>(buffer));
  }();
  const Buffer& freed = node.mapped();
  if (freed.is_borrowed) return;
  allow(memory, with_gaps(freed.n_bytes));
  if (freed.pages.data() == nullptr) ::operator delete (memory, std::align_val_t{kAlignment});
}

WindowHandle handle_of(const void* window) {
  const std::lock_guard lock(registry_mutex);
  const auto found = registry.find(reinterpret_cast<std::uintptr_t>(window));
  if (found == registry.end() || found->second.pages.data() == nullptr)
    throw DeviceError("handle(): not a window of this process");
  return found->second.pages.handle();
}

void* open_window(const WindowHandle& handle, std::size_t n_bytes) {
  make_context();
  SharedPages pages(handle, with_gaps(n_bytes));
  void* const first = pages.data() + kGap;
  forbid_gaps(pages.data(), n_bytes);
  const std::lock_guard lock(registry_mutex);
  Buffer& buffer = registry[reinterpret_cast<std::uintptr_t>(first)];
  buffer.n_bytes = n_bytes, buffer.use = MemoryUse::Window, buffer.device = kElsewhere, buffer.pages = std::move(pages);
  ++n_opened;
  return first;
}

void borrow_window(void* memory, std::size_t n_bytes) {
  const std::lock_guard lock(registry_mutex);
  Buffer& buffer = registry[reinterpret_cast<std::uintptr_t>(memory)];
  buffer.n_bytes = n_bytes, buffer.use = MemoryUse::Window, buffer.device = current_device();
  buffer.is_borrowed = true;
}

void close_window(void* window) {
  if (window == nullptr) return;
  free_global(window);
  --n_opened;
}

bool others_may_store() { return n_opened > 0; }

void forget_seen_buffers() { seen_buffers = {}; }

namespace {

/// The last buffer that begins at or before an address; past the end if none does. @pre the lock is held
auto at_or_before(std::uintptr_t at) {
  const auto after = registry.upper_bound(at);
  return after == registry.begin() ? registry.end() : std::prev(after);
}

}  // namespace

SeenBuffers::Range& find_global(std::uintptr_t at, std::size_t n_bytes, Reach reach, const char* word, const Line& line) {
  const Unwatched unwatched;
  const char* const does = reach >= Reach::kWrite ? " writes " : " reads ";
  const std::lock_guard lock(registry_mutex);
  if (const auto found = at_or_before(at); found != registry.end()) {
    const std::uintptr_t low = found->first, high = low + found->second.n_bytes;
    if (at >= low && at + n_bytes <= high) {
      const Grid& grid = running->block->cluster->grid;
      const bool is_far = found->second.device != grid.device;
      if (is_far) check_far(found->second, grid, word + std::string(does), line);
      freshen(low, found->second, grid);
      SeenBuffers::Range& range = seen_buffers.range[seen_buffers.next];
      range = {low, high, found->second.use, found->second.written.get(), &found->second.reader, &found->second.writer};
      range.writers = found->second.writers.get();
      range.is_far = is_far;
      if (grid.footprint != nullptr && !is_window(range.use)) range.touched = &grid.footprint->of(low, high - low);
      seen_buffers.next = (seen_buffers.next + 1) % SeenBuffers::kCount;
      return range;
    }
    if (at >= low && at < high + kGap) {
      fail(line, word + std::string(does) + "bytes " + std::to_string(at - low) + " to " +
                     std::to_string(at - low + n_bytes) + " of a buffer of " + std::to_string(high - low));
    }
  }
  fail(line, word + std::string(does) + "memory that lies in no buffer of the device");
}

void note_copy(Footprint& footprint, const std::byte* first, std::size_t n_bytes, Reach reach, const char* word,
               const Line& line) {
  const auto at = reinterpret_cast<std::uintptr_t>(first);
  std::uintptr_t low = 0;
  std::size_t size = 0;
  {
    const std::lock_guard lock(registry_mutex);
    if (const auto found = at_or_before(at); found != registry.end()) low = found->first, size = found->second.n_bytes;
  }
  if (size == 0 || at < low || at + n_bytes > low + size)
    fail(line, std::string(word) + ": outside any buffer of the device");
  footprint.of(low, size).note(at - low, n_bytes, reach, word, line);
}

void check_use(SeenBuffers::Range& range, std::uintptr_t at, std::size_t n_bytes, Reach reach, const char* word,
               const Line& line) {
  if (range.use == MemoryUse::Input) {
    if (reach >= Reach::kWrite) fail(line, std::string(word) + " writes a buffer of input");
    return;
  }
  if (range.is_far && reach >= Reach::kWrite) {
    traffic().bytes_to_peers += static_cast<std::int64_t>(n_bytes);
    bytes_to_peers(running->block->cluster->grid.device) += static_cast<std::int64_t>(n_bytes);
  }
  check_overlap(range, at, n_bytes, reach, word, line);
  if (range.use != MemoryUse::Scratch) return;
  if (reach == Reach::kReadOnly) fail(line, std::string(word) + " is for memory that no kernel writes, and this is scratch");
  if (range.written == nullptr) return;
  bool* const written = range.written + (at - range.low);
  if (reach >= Reach::kWrite) {
    std::fill_n(written, n_bytes, true);
  } else if (std::count(written, written + n_bytes, false) > 0) {
    fail(line, std::string(word) + " reads scratch memory that this launch has not written");
  }
}

void wait_for_previous_launch() { running->waited = true; }

}  // namespace tree_attn::emulated::runtime
