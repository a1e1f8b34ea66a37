// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The books of shadow mode: for every two bytes of shared memory the last write and the reads since.
///
/// Order is kept by vector clocks (Lamport 1978, Fidge 1988, Mattern 1989), reduced to one entry a write as in FastTrack
/// (Flanagan, Freund 2009): an access by thread t at time c happened before all that a thread does whose clock has c or more
/// in place t. Whether two accesses race is then a matter of the kernel and not of the order in which the fibers ran.
#if defined(TREE_ATTN_EMULATOR_SHADOW)
#include "gpu/emulator/shadow.hpp"

#include "gpu/emulator/checked_pointer.hpp"

#include <algorithm>
#include <string>

namespace tree_attn::emulated::runtime {
namespace shadow {
namespace {

/// mbarriers also have clock entries, after those of the threads; bulk copies use the entry of their mbarrier.
constexpr int kMostBarriers = 32;
constexpr std::uint32_t kNobody = 0xFFFFFFFF;

}  // namespace

struct Entry {
  Line line;
  std::uint32_t who = kNobody;
  std::uint32_t time = 0;
};

/// Two bytes.
struct Cell {
  Entry write;
  bool in_flight = false;  ///< `write` is then the issue of the copy
  std::vector<Entry> reads;
};

struct Books {
  std::vector<Cell> cells;
  std::size_t n_used = 0;  ///< cells that are not fresh
};

namespace {

std::uint32_t clock_index(const PhaseBarrier& barrier, const Block& block) {
  const auto n_threads = static_cast<std::uint32_t>(block.cluster->threads.size());
  return n_threads + static_cast<std::uint32_t>(block.rank * kMostBarriers + barrier.number % kMostBarriers);
}

void join(Clock& clock, const Clock& other) {
  for (std::size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

bool known(const Entry& entry, const Clock& clock) { return entry.who == kNobody || entry.time <= clock[entry.who]; }

std::string name_of(const Entry& entry, const Cluster& cluster) {
  const std::string who =
      entry.who < cluster.threads.size() ? to_string(cluster.threads[entry.who].coordinates) : "a bulk copy";
  return to_string(entry.line) + " (" + who + ")";
}

/// Calls act(cell, byte offset) for the cells of some bytes.
template <class Act>
void for_cells(Cluster& cluster, const std::byte* at, std::size_t n_bytes, const Act& act) {
  const auto offset = static_cast<std::size_t>(at - cluster.memory_begin);
  Books& books = *cluster.books;
  const std::size_t end = (offset + n_bytes + 1) / 2;
  books.n_used = std::max(books.n_used, end);
  for (std::size_t i = offset / 2; i < end; ++i) act(books.cells[i]);
}

/// Checks that the running thread may read or write a cell.
void check(const Cell& cell, bool writes, const char* does, const Line& line) {
  const Thread& self = *running;
  const Cluster& cluster = *self.block->cluster;
  if (cell.in_flight)
    fail(line, std::string(does) + " what a copy of " + name_of(cell.write, cluster) + " has not brought yet");
  if (!known(cell.write, self.clock)) {
    fail(line,
         "race: " + std::string(does) + " what " + name_of(cell.write, cluster) + " writes, and no barrier orders the two");
  }
  if (!writes) return;
  for (const Entry& read : cell.reads) {
    if (!known(read, self.clock)) {
      fail(line, "race: " + std::string(does) + " what " + name_of(read, cluster) + " reads, and no barrier orders the two");
    }
  }
}

Entry own_entry(const Line& line) {
  const auto who = static_cast<std::uint32_t>(running->number);
  return {line, who, running->clock[who]};
}

}  // namespace

void begin_cluster(Cluster& cluster) {
  if (!cluster.books) {
    cluster.books = std::make_shared<Books>();
    cluster.books->cells.resize(cluster.memory_stride * cluster.blocks.size() / 2);
  }
  for (std::size_t i = 0; i < cluster.books->n_used; ++i) cluster.books->cells[i] = {};
  cluster.books->n_used = 0;
  const std::size_t n = cluster.threads.size() + cluster.blocks.size() * kMostBarriers;
  for (Thread& thread : cluster.threads) {
    thread.clock.assign(2 * n, 0);
    thread.clock[static_cast<std::size_t>(thread.number)] = 1;
  }
}

void synchronise(Thread* const* threads, int n) {
  Clock all = threads[0]->clock;
  for (int i = 1; i < n; ++i) join(all, threads[i]->clock);
  for (int i = 0; i < n; ++i) {
    threads[i]->clock = all;
    ++threads[i]->clock[static_cast<std::size_t>(threads[i]->number)];
  }
}

void arrive(PhaseBarrier& barrier) {
  barrier.arriving.resize(running->clock.size());
  join(barrier.arriving, running->clock);
  ++running->clock[static_cast<std::size_t>(running->number)];
}

void complete(PhaseBarrier& barrier) { barrier.completed = barrier.arriving; }
void pass(PhaseBarrier& barrier) { join(running->clock, barrier.completed); }

void fence_proxies() {
  Clock& clock = running->clock;
  const std::size_t n = clock.size() / 2;
  std::copy_n(clock.begin(), n, clock.begin() + static_cast<std::ptrdiff_t>(n));
  // What this thread writes from here on comes after the fence.
  ++clock[static_cast<std::size_t>(running->number)];
}

void check_fenced(const std::byte* at, std::size_t n_bytes, const char* does, const Line& line) {
  const Cluster& cluster = *running->block->cluster;
  const Clock& clock = running->clock;
  for_cells(*running->block->cluster, at, n_bytes, [&](const Cell& cell) {
    const Entry& write = cell.write;
    if (write.who < cluster.threads.size() && known(write, clock) && write.time > clock[clock.size() / 2 + write.who])
      fail(line,
           std::string(does) + " what " + name_of(write, cluster) + " writes, and no async_proxy_fence() lies between");
  });
}

void issue(const std::byte* to, std::size_t n_bytes, const Line& line) {
  for_cells(*running->block->cluster, to, n_bytes, [&](Cell& cell) {
    check(cell, true, "a copy overwrites", line);
    cell.write = own_entry(line);
    cell.in_flight = true;
    cell.reads.clear();
  });
}

void land(const std::byte* to, std::size_t n_bytes, const Line& line) {
  for_cells(*running->block->cluster, to, n_bytes, [&](Cell& cell) {
    cell.write = own_entry(line);
    cell.in_flight = false;
  });
}

void deliver(const BulkCopy& copy) {
  const std::uint32_t index = clock_index(*copy.barrier, *copy.block);
  copy.barrier->arriving.resize(copy.block->threads->clock.size());
  const std::uint32_t time = ++copy.barrier->arriving[index];
  for_cells(*copy.block->cluster, copy.to, static_cast<std::size_t>(copy.n_bytes), [&](Cell& cell) {
    cell.write = {copy.line, index, time};
    cell.in_flight = false;
  });
}

void access(const std::byte* at, std::size_t n_bytes, bool writes, const Line& line) {
  const Entry own = own_entry(line);
  for_cells(*running->block->cluster, at, n_bytes, [&](Cell& cell) {
    if (!writes && cell.write.who == kNobody) fail(line, "reads shared memory that no thread has written");
    check(cell, writes, writes ? "overwrites" : "reads", line);
    if (writes) {
      cell.write = own;
      cell.reads.clear();
      return;
    }
    // Reads ordered before this one can be dropped: what is ordered after this read is ordered after them.
    if (!cell.reads.empty() && cell.reads.back().who == own.who && cell.reads.back().time == own.time) return;
    std::erase_if(cell.reads, [&](const Entry& read) { return known(read, running->clock); });
    cell.reads.push_back(own);
  });
}

void end_block(Block& block) {
  Cluster& cluster = *block.cluster;
  const std::size_t n_threads = cluster.threads.size() / cluster.blocks.size();
  Clock all = block.threads[0].clock;
  for (std::size_t i = 1; i < n_threads; ++i) join(all, block.threads[i].clock);
  const auto check_over = [&](const Entry& entry) {
    if (!known(entry, all)) {
      fail(entry.line, "shared memory of a block that does not wait, and may have ended: " + name_of(entry, cluster) +
                           " uses that of " + to_string(block.threads[0].coordinates));
    }
  };
  for (const Take& take : block.takes) {
    for_cells(cluster, take.first, take.n_bytes, [&](const Cell& cell) {
      // Its own threads have ended, and its copies arrived; only other blocks can be late.
      if (cell.write.who < cluster.threads.size()) check_over(cell.write);
      for (const Entry& read : cell.reads) check_over(read);
    });
  }
}

}  // namespace shadow

void access_shared(const void* at, std::size_t n_bytes, Access access, const Allocation& allocation, const Line& line) {
  const auto* const from = static_cast<const std::byte*>(at);
  if (from == nullptr || from < allocation.first || from + n_bytes > allocation.first + allocation.n_bytes) {
    fail(line, "bytes " + std::to_string(from - allocation.first) + " to " +
                   std::to_string(from - allocation.first + static_cast<std::ptrdiff_t>(n_bytes)) +
                   " of a piece of shared memory of " + std::to_string(allocation.n_bytes));
  }
  if (access == Access::kBoundsOnly) return;
  const Cluster& cluster = *running->block->cluster;
  const Block& block = cluster.blocks[static_cast<std::size_t>(from - cluster.memory_begin) / cluster.memory_stride];
  if (block.n_exited * cluster.blocks.size() == cluster.threads.size())
    fail(line, "shared memory of a block that has ended");
  shadow::access(from, n_bytes, access == Access::kWrite, line);
}

}  // namespace tree_attn::emulated::runtime
#endif
