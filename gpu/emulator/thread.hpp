// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Internal: threads, warps, blocks, clusters. Kernels never see this file.
///
/// A cluster is run by one host thread, so nothing in it needs a lock. What a kernel may do to it are the functions at the
/// end of each part; device.hpp gives them CUDA's names.
#pragma once

#include "gpu/emulator/coordinates.hpp"
#include "gpu/emulator/fiber.hpp"
#include "gpu/emulator/grid.hpp"
#include "gpu/emulator/random.hpp"
#include "gpu/emulator/runtime.hpp"
#include "gpu/emulator/settings.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tree_attn::emulated::runtime {

struct Block;
struct Cluster;
struct Warp;

/// Call in which a thread stands, in the words of the kernel.
struct Call {
  const char* name = nullptr;
  Line line;
};

/// A copy that has been issued and not yet been waited for.
struct AsyncCopy {
  std::byte* to;
  const void* from;
  int n_bytes;  ///< of 16 that come from there
  int group;
  Line line;
};

/// A vector clock: for each thread of the cluster, how much of what it did is known to have happened; in a second half, how
/// much of that a fence of proxies has followed. Shadow mode.
using Clock = std::vector<std::uint32_t>;

/// One thread of a block.
struct Thread {
  Coordinates coordinates;
  Fiber fiber;
  Block* block = nullptr;
  Warp* warp = nullptr;
  unsigned lane = 0;
  int number = 0;  ///< in its cluster
  bool exited = false;
  Thread* next = nullptr;   ///< in the queue of threads that can run
  Call call;                ///< what it waits at; no name: it can run
  void* operand = nullptr;  ///< of the collective it waits at
  const void* meeting_mark = nullptr;
  std::vector<AsyncCopy> copies;
  int group = 0;        ///< of the next asynchronous copy
  bool waited = false;  ///< for the launch before this one
  Clock clock;
};

/// Threads that wait for one another at one line.
struct Meeting {
  Call call;
  Thread* first = nullptr;
  unsigned mask = 0, arrived = 0;  ///< of a warp
  int n_arrived = 0;               ///< of a block or a cluster
  const void* mark = nullptr;      ///< for TSan: an address of this meeting alone
};

/// The lanes that meet in shuffles.
struct Warp {
  Thread* lanes = nullptr;
  unsigned present = 0, exited = 0;
  std::vector<Meeting> open;
};

/// A piece of shared memory that the kernel took.
struct Take {
  std::byte* first;
  std::size_t n_bytes;
  Line line;
};

/// An mbarrier. The kernel's word holds its number.
struct PhaseBarrier {
  std::byte* at = nullptr;
  int count = 0, pending = 0;
  std::int64_t n_bytes_missing = 0;  ///< announced in this phase, and not arrived
  std::int64_t n_bytes_coming = 0;   ///< of copies on their way
  unsigned phase = 0;
  const Thread* initialised_by = nullptr;
  bool fenced = false;
  int number = 0;
  std::vector<Thread*> waiting;
  Clock arriving, completed;
};

/// A bulk copy on its way.
struct BulkCopy {
  Block* block;
  std::byte* to;
  const void* from;  ///< null for a box
  int n_bytes;
  PhaseBarrier* barrier;
  Line line;
  TensorBox box{};
};

/// A packet on its way, see far_stores.cpp.
struct FarStore {
  Packet* to;
  Packet packet;
};

/// Products of warpgroups under way, see wgmma.cpp.
struct Warpgroup;

/// The threads that meet at __syncthreads(), and their shared memory.
struct Block {
  Cluster* cluster = nullptr;
  int rank = 0;
  Thread* threads = nullptr;
  int n_exited = 0;
  std::vector<Warp> warps{};
  Meeting meeting{};
  Meeting of_neighbours[16]{};  ///< of sync_neighbours(), by the number of the barrier
  Meeting of_warpgroups[8]{};
  std::shared_ptr<Warpgroup[]> warpgroups{};  ///< as many, once there are products
  /// Then also the check that all of them have been waited for; it throws DeviceError.
  void (*end_warpgroups)(const Block&) = nullptr;
  std::byte* shared = nullptr;  ///< with its red zones
  std::size_t plain_bytes = 0;  ///< that the takes so far have on a device
  std::vector<Take> takes{};
  std::deque<PhaseBarrier> barriers{};
  int number = 0;  ///< in the grid
};

namespace shadow {
struct Books;
}

/// The blocks that one host thread runs together.
struct Cluster {
  explicit Cluster(Grid& of) : grid(of) {}
  Grid& grid;
  std::vector<Thread> threads;
  std::vector<Block> blocks;
  std::vector<std::byte> memory;
  std::byte* memory_begin = nullptr;
  std::size_t memory_stride = 0;
  Meeting meeting;
  int n_exited = 0;
  Fiber host;
  Random random;
  std::uint16_t nan = 0;
  Thread* ready_first = nullptr;
  Thread* ready_last = nullptr;
  std::vector<Thread*> released;
  std::vector<BulkCopy> bulk_copies;
  std::vector<FarStore> far_stores;
  std::vector<Thread*> waiting;  ///< for memory that others write
  std::uint64_t n_passed = 0;    ///< waits for memory that have ended
  std::uint32_t n_switches = 0;
  std::uint64_t n_meetings = 0;
  std::vector<std::uint64_t> marks;  ///< addresses for TSan, one a meeting
  std::shared_ptr<shadow::Books> books;
};

/// The running thread.
extern constinit thread_local Thread* running;

/// Parks the running thread at a call until another thread releases it.
void park(const Call& call);
/// Lets threads run on, in an order that the seed chooses.
void resume(Cluster& cluster, Thread* const* threads, int n);
/// Describes the parked threads for a report of a deadlock: by line and word, how many, and the first of them.
std::string waits_of(std::span<Cluster* const> clusters);

/// Runs cluster `number` of the grid until all of its threads have ended, or all wait. @returns whether it has ended
bool begin_and_run(Cluster& cluster, int number);
/// Lets the threads that wait for memory look again. @param[out] changed set if any of them has gone on @returns the same
bool look_again(Cluster& cluster, bool& changed);
/// Ends a cluster whose launch has failed.
void abandon(Cluster& cluster);
/// Delivers one bulk copy, any.
void deliver_bulk_copy(Cluster& cluster);
/// Delivers one far store at random; those to one address arrive in their order. @returns false if there is none
bool deliver_far_store(Cluster& cluster);

/// Lays out the shared memory of every block, poisoned; and checks and poisons that of a block that has ended.
void begin_shared_memory(Cluster& cluster);
void end_shared_memory(Block& block);
/// @throws DeviceError if the bytes do not lie in one piece that the running block has taken
void check_taken(const std::byte* at, std::size_t n_bytes, const char* word, const Line& line);

/// @throws DeviceError if another thread waits for one that is about to exit
void leave_meetings(Thread& thread);

/// Opens a meeting of some lanes or joins the open one. @throws DeviceError for lanes that meet elsewhere or have returned
Meeting& enter_warp(unsigned mask, const Call& call, void* operand, bool& last);
/// Lets its lanes go on.
void close_warp(Meeting& meeting);

/// A collective: `operand` is the argument and the result of this lane; the last lane calls work(lanes), once.
template <class Work>
void meet_lanes(unsigned mask, const Call& call, void* operand, const Work& work) {
  bool last = false;
  Meeting& meeting = enter_warp(mask, call, operand, last);
  if (last) {
    work(running->warp->lanes);
    close_warp(meeting);
  }
  park(call);
}

/// Threads of a warpgroup.
inline constexpr int kWarpgroup = 128;
/// Opens a meeting of the four warps of the running thread, or joins the open one. @returns whether it is the last
/// @throws DeviceError for a block without these warps
bool enter_warpgroup(const Call& call, void* operand);
/// The first of its threads; and lets all of them go on.
Thread* first_of_warpgroup();
void close_warpgroup();

/// A collective of four warps, as meet_lanes().
template <class Work>
void meet_warpgroup(const Call& call, void* operand, const Work& work) {
  if (enter_warpgroup(call, operand)) {
    work(first_of_warpgroup());
    close_warpgroup();
  }
  park(call);
}

}  // namespace tree_attn::emulated::runtime
