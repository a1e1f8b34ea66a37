// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief mbarriers, and the bulk copies that complete on them.
///
/// A phase ends when `count` threads have arrived and all bytes that were announced have come. The kernel's 8 bytes hold a
/// mark and a number; the state is kept here.
#include "gpu/emulator/global_memory.hpp"
#include "gpu/emulator/sanitizer.hpp"
#include "gpu/emulator/shadow.hpp"
#include "gpu/emulator/stream.hpp"
#include "gpu/emulator/thread.hpp"

#include <algorithm>
#include <cstring>
#include <string>

namespace tree_attn::emulated::runtime {
namespace {

constexpr std::uint64_t kMark = 0xBA771E40;
/// Bytes that one phase of an mbarrier can await.
constexpr std::int64_t kMaxBytes = (1 << 20) - 1;

/// The barrier that a word of shared memory of a block stands for.
PhaseBarrier& find(const std::uint64_t* word, const char* what, const Line& line, Block& block = *running->block) {
  shadow::access(reinterpret_cast<const std::byte*>(word), sizeof *word, false, line);
  const std::uint64_t number = *word & 0xFFFFFFFF;
  if (*word >> 32 != kMark || number >= block.barriers.size())
    fail(line, std::string(what) + ": the barrier was never initialised");
  return block.barriers[number];
}

/// Begins the next phase if this one is over; threads that waited for its end go on.
void try_complete(Cluster& cluster, PhaseBarrier& barrier) {
  if (barrier.pending != 0 || barrier.n_bytes_missing != 0) return;
  ++barrier.phase;
  barrier.pending = barrier.count;
  shadow::complete(barrier);
  if (barrier.waiting.empty()) return;
  const std::vector<Thread*> free = std::move(barrier.waiting);
  barrier.waiting.clear();
  resume(cluster, free.data(), static_cast<int>(free.size()));
}

/// The barrier in the same place of a block of the cluster.
PhaseBarrier& find_at(std::uint64_t* word, int rank, const char* what, const Line& line) {
  std::byte* const there = remote(reinterpret_cast<std::byte*>(word), rank, line);
  Block& block = running->block->cluster->blocks[static_cast<std::size_t>(rank)];
  if (block.takes.empty()) fail(line, std::string(what) + ": block " + std::to_string(rank) + " has no barrier yet");
  return find(reinterpret_cast<const std::uint64_t*>(there), what, line, block);
}

void arrive(PhaseBarrier& barrier, int n_bytes, const Line& line) {
  if (barrier.pending == 0) {
    fail(line, "barrier_arrive: one more than the " + std::to_string(barrier.count) + " arrivals of a phase");
  }
  if (n_bytes < 0 || barrier.n_bytes_missing + n_bytes > kMaxBytes) {
    fail(line,
         "barrier_arrive_expect: " + std::to_string(n_bytes) + " bytes; a phase can await " + std::to_string(kMaxBytes));
  }
  release(barrier.at);
  shadow::arrive(barrier);
  --barrier.pending;
  barrier.n_bytes_missing += n_bytes;
  try_complete(*running->block->cluster, barrier);
}

/// Calls act(byte of the box, address, bytes) for the part of every 16-byte vector of a box that lies inside the array.
template <class Act>
void for_vectors(const TensorBox& box, const Act& act) {
  const auto& [array, first] = box;
  const auto inside = [&](int axis, std::int64_t i) { return i >= 0 && i < array.extent[axis]; };
  if (!inside(0, first[0]) || !inside(1, first[1])) return;
  const int size = array.size(), in_vector = 16 / size, n_vectors = kBoxColumns / in_vector;
  for (int r = 0; r < array.rows; ++r) {
    const std::int64_t row = std::int64_t{first[2]} + r;
    if (!inside(2, row)) continue;
    const auto* const from = static_cast<const std::byte*>(array.data) +
                             size * (first[0] * array.stride[0] + first[1] * array.stride[1] + row * array.stride[2]);
    for (int vector = 0; vector < n_vectors; ++vector) {
      const std::int64_t column = std::int64_t{first[3]} + in_vector * vector;
      const std::int64_t begin = std::max<std::int64_t>(column, 0), end = std::min(column + in_vector, array.extent[3]);
      if (begin >= end) continue;
      const int to_vector = size == 2 ? swizzled_unit(r, vector) : vector;
      const std::int64_t at = (r * n_vectors + to_vector) * 16 + size * (begin - column);
      act(static_cast<std::size_t>(at), from + size * begin, static_cast<std::size_t>(size * (end - begin)));
    }
  }
}

/// Checks the rules of every bulk copy, then puts the copy in flight.
void issue(const BulkCopy& copy, const char* what) {
  PhaseBarrier& barrier = *copy.barrier;
  const Line& line = copy.line;
  // For it nvcc compiles no kernel that starts one: a launch would leave its outputs as they were.
  if (const int major = running->block->cluster->grid.settings.major; major < 9)
    fail(line, std::string(what) + ": compute capability " + std::to_string(major) + " has no bulk copies");
  if (!barrier.fenced)
    fail(line, std::string(what) + ": no barrier_fence_init() since the barrier was initialised, by the thread that did it");
  if (barrier.n_bytes_missing < barrier.n_bytes_coming + copy.n_bytes) {
    fail(line, std::string(what) + ": " + std::to_string(copy.n_bytes) + " bytes, of which the barrier expects " +
                   std::to_string(barrier.n_bytes_missing - barrier.n_bytes_coming));
  }
  const auto n_bytes = static_cast<std::size_t>(copy.n_bytes);
  shadow::check_fenced(copy.to, n_bytes, "a bulk copy overwrites", line);
  shadow::issue(copy.to, n_bytes, line);
  // Reads and writes count as those of the thread that asks, which is where a race with them begins.
  note_write(copy.to, n_bytes);
  release(barrier.at);
  fill_with(running->block->cluster->nan, copy.to, n_bytes);
  forbid(copy.to, n_bytes);
  barrier.n_bytes_coming += copy.n_bytes;
  running->block->cluster->bulk_copies.push_back(copy);
}

}  // namespace

void deliver_bulk_copy(Cluster& cluster) {
  const std::uint32_t which =
      cluster.grid.settings.seed == 0 ? 0 : cluster.random.below(static_cast<std::uint32_t>(cluster.bulk_copies.size()));
  const BulkCopy copy = cluster.bulk_copies[which];
  cluster.bulk_copies.erase(cluster.bulk_copies.begin() + which);
  const auto n_bytes = static_cast<std::size_t>(copy.n_bytes);
  allow(copy.to, n_bytes);
  if (copy.from != nullptr) {
    std::memcpy(copy.to, copy.from, n_bytes);
  } else {
    std::memset(copy.to, 0, n_bytes);
    for_vectors(copy.box, [&](std::size_t at, const std::byte* from, std::size_t n) { std::memcpy(copy.to + at, from, n); });
  }
  shadow::deliver(copy);
  copy.barrier->n_bytes_missing -= copy.n_bytes;
  copy.barrier->n_bytes_coming -= copy.n_bytes;
  try_complete(cluster, *copy.barrier);
}

void barrier_init(std::uint64_t* word, int count, const Line& line) {
  const Unwatched unwatched;
  Block& block = *running->block;
  if (count < 1 || count >= 1 << 20) fail(line, "barrier_init: a count of " + std::to_string(count));
  if (reinterpret_cast<std::uintptr_t>(word) % 8 != 0) fail(line, "barrier_init: the address is not a multiple of 8");
  shadow::access(reinterpret_cast<const std::byte*>(word), sizeof *word, true, line);
  PhaseBarrier& barrier = block.barriers.emplace_back();
  barrier.at = reinterpret_cast<std::byte*>(word);
  barrier.number = static_cast<int>(block.barriers.size()) - 1;
  barrier.count = barrier.pending = count;
  barrier.initialised_by = running;
  *word = kMark << 32 | static_cast<std::uint64_t>(barrier.number);
}

void barrier_fence_init() {
  const Unwatched unwatched;
  for (PhaseBarrier& barrier : running->block->barriers) {
    if (barrier.initialised_by == running) barrier.fenced = true;
  }
  // On the device it is a fence of proxies too.
  shadow::fence_proxies();
}

void async_proxy_fence() {
  const Unwatched unwatched;
  shadow::fence_proxies();
}

void barrier_arrive(std::uint64_t* word, int n_bytes, const Line& line) {
  const Unwatched unwatched;
  arrive(find(word, "barrier_arrive", line), n_bytes, line);
}
void barrier_arrive_at(std::uint64_t* word, int rank, const Line& line) {
  const Unwatched unwatched;
  arrive(find_at(word, rank, "barrier_arrive_at", line), 0, line);
}

void barrier_wait(std::uint64_t* word, int parity, const Line& line) {
  const Unwatched unwatched;
  PhaseBarrier& barrier = find(word, "barrier_wait", line);
  if (parity != 0 && parity != 1) fail(line, "barrier_wait: a parity of " + std::to_string(parity));
  // The phase of this parity has ended once the one that runs has the other.
  while ((barrier.phase & 1) == static_cast<unsigned>(parity)) {
    barrier.waiting.push_back(running);
    park({"barrier_wait", line});
  }
  acquire(barrier.at);
  shadow::pass(barrier);
}

void bulk_copy(std::byte* to, const void* from, int n_bytes, std::uint64_t* word, const Line& line) {
  const Unwatched unwatched;
  PhaseBarrier& barrier = find(word, "bulk_copy", line);
  if (n_bytes <= 0 || n_bytes % 16 != 0)
    fail(line, "bulk_copy: " + std::to_string(n_bytes) + " bytes are no multiple of 16");
  if (reinterpret_cast<std::uintptr_t>(to) % 16 != 0 || reinterpret_cast<std::uintptr_t>(from) % 16 != 0) {
    fail(line, "bulk_copy: an address is not a multiple of 16");
  }
  const auto n = static_cast<std::size_t>(n_bytes);
  check_taken(to, n, "bulk_copy", line);
  check_global(from, n, Reach::kRead, "bulk_copy", line);
  note_read(from, n);
  traffic().bytes_bulk += n_bytes;
  issue({running->block, to, from, n_bytes, &barrier, line}, "bulk_copy");
}

void bulk_copy_tensor(std::byte* to, const TensorBox& box, DType dtype, std::uint64_t* word, const Line& line,
                      unsigned ranks) {
  const Unwatched unwatched;
  if (const std::string why = refusal(box.array); !why.empty()) fail(line, "bulk_copy_tensor: not a tensor map: " + why);
  if (box.array.dtype != dtype) {
    fail(line, "bulk_copy_tensor: the map is of " + std::string(name_of(box.array.dtype)) + ", the kernel asks for " +
                   std::string(name_of(dtype)));
  }
  if (const int alignment = box.array.size() == 2 ? kBoxAlignment : 128;
      reinterpret_cast<std::uintptr_t>(to) % alignment != 0)
    fail(line, "bulk_copy_tensor: the address is not a multiple of " + std::to_string(alignment));
  std::int64_t n_read = 0;
  for_vectors(box, [&](std::size_t, const std::byte* from, std::size_t n) {
    check_global(from, n, Reach::kRead, "bulk_copy_tensor", line);
    note_read(from, n);
    n_read += static_cast<std::int64_t>(n);
  });
  traffic().bytes_bulk += n_read;
  check_taken(to, static_cast<std::size_t>(box.array.box_bytes()), "bulk_copy_tensor", line);
  if (ranks == 0) ranks = 1U << running->block->rank;
  for (int rank = 0; ranks >> rank != 0; ++rank) {
    if ((ranks >> rank & 1) == 0) continue;
    PhaseBarrier& barrier = find_at(word, rank, "bulk_copy_tensor", line);
    Block& block = running->block->cluster->blocks[static_cast<std::size_t>(rank)];
    issue({&block, remote(to, rank, line), nullptr, box.array.box_bytes(), &barrier, line, box}, "bulk_copy_tensor");
  }
}

}  // namespace tree_attn::emulated::runtime
