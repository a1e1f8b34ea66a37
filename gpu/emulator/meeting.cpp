// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The one mechanism of every collective: operands are parked, the last to arrive does the work for all.
#include "gpu/emulator/sanitizer.hpp"
#include "gpu/emulator/shadow.hpp"
#include "gpu/emulator/thread.hpp"

#include <bit>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

namespace tree_attn::emulated::runtime {
namespace {

bool same(const Call& a, const Call& b) {
  // The compiler describes a line once, so nearly always these are the same pointers.
  if (a.name == b.name && std::memcmp(&a.line, &b.line, sizeof a.line) == 0) return true;
  return a.line.line() == b.line.line() && a.line.column() == b.line.column() && a.name == std::string_view(b.name) &&
         a.line.file_name() == std::string_view(b.line.file_name());
}

std::string name_of(unsigned mask) {
  char text[16];
  std::snprintf(text, sizeof text, "%08x", mask);
  return text;
}

/// Threads that meet must be at the same line; `there` was first.
void check_same(const Meeting& meeting, const Call& call) {
  if (same(meeting.call, call)) return;
  fail(call.line, std::string(call.name) + " meets " + meeting.call.name + " at " + to_string(meeting.call.line) + " (" +
                      to_string(meeting.first->coordinates) + ")");
}

/// Opens a meeting of a block or cluster or joins it. @returns whether the caller is the last
bool enter(Meeting& meeting, const Call& call, int n_members, int n_exited, const char* of) {
  Thread& self = *running;
  if (n_exited > 0) fail(call.line, std::string(call.name) + ": waits for a thread of the " + of + " that has exited");
  if (meeting.n_arrived == 0) {
    Cluster& cluster = *self.block->cluster;
    meeting = {call, &self, 0, 0, 0, &cluster.marks[cluster.n_meetings++ % cluster.marks.size()]};
  } else {
    check_same(meeting, call);
  }
  self.meeting_mark = meeting.mark;
  release(meeting.mark);
  return ++meeting.n_arrived == n_members;
}

/// The threads of some lanes of the warp of the running one.
struct Lanes {
  explicit Lanes(unsigned mask) {
    for (; mask != 0; mask &= mask - 1) of[n++] = running->warp->lanes + std::countr_zero(mask);
  }
  Thread* of[32];
  int n = 0;
};

int n_exited_of(const Block& block, std::ptrdiff_t first, int n) {
  int n_exited = 0;
  for (auto warp = first / 32; warp < (first + n) / 32; ++warp)
    n_exited += std::popcount(block.warps[static_cast<std::size_t>(warp)].exited);
  return n_exited;
}

/// A barrier of `n` threads in a row.
void meet_all(Meeting& meeting, const Call& call, Thread* threads, int n, int n_exited, const char* of) {
  if (enter(meeting, call, n, n_exited, of)) {
    meeting.n_arrived = 0;
    std::vector<Thread*> all;
    for (int i = 0; i < n; ++i) all.push_back(threads + i);
    shadow::synchronise(all.data(), n);
    resume(*running->block->cluster, all.data(), n);
  }
  park(call);
  acquire(running->meeting_mark);
}

}  // namespace

Meeting& enter_warp(unsigned mask, const Call& call, void* operand, bool& last) {
  Thread& self = *running;
  Warp& warp = *self.warp;
  const unsigned own = 1u << self.lane;
  if ((mask & own) == 0)
    fail(call.line, std::string(call.name) + ": the mask " + name_of(mask) + " leaves out its own lane");
  if ((mask & ~warp.present) != 0)
    fail(call.line, std::string(call.name) + ": the mask " + name_of(mask) + " names lanes that the warp does not have");
  if ((mask & warp.exited) != 0)
    fail(call.line, std::string(call.name) + ": waits for lanes " + name_of(mask & warp.exited) + " that have exited");
  self.operand = operand;
  for (Meeting& meeting : warp.open) {
    if ((meeting.mask & mask) == 0) continue;
    check_same(meeting, call);
    if (meeting.mask != mask) {
      fail(call.line, std::string(call.name) + ": lanes meet with masks " + name_of(mask) + " and " + name_of(meeting.mask));
    }
    meeting.arrived |= own;
    last = meeting.arrived == mask;
    return meeting;
  }
  Cluster& cluster = *self.block->cluster;
  warp.open.push_back({call, &self, mask, own, 0, &cluster.marks[cluster.n_meetings++ % cluster.marks.size()]});
  last = own == mask;
  return warp.open.back();
}

void close_warp(Meeting& meeting) {
  const Lanes lanes(meeting.mask);
  meeting = running->warp->open.back();
  running->warp->open.pop_back();
  resume(*running->block->cluster, lanes.of, lanes.n);
}

bool enter_warpgroup(const Call& call, void* operand) {
  Block& block = *running->block;
  const auto first = first_of_warpgroup() - block.threads;
  if (static_cast<std::size_t>(first + kWarpgroup) > block.warps.size() * 32)
    fail(call.line,
         std::string(call.name) + ": the block has no four warps from warp " + std::to_string(first / 32) + " on");
  running->operand = operand;
  return enter(block.of_warpgroups[first / kWarpgroup], call, kWarpgroup, n_exited_of(block, first, kWarpgroup),
               "warpgroup");
}

Thread* first_of_warpgroup() {
  Thread* const threads = running->block->threads;
  return threads + (running - threads) / kWarpgroup * kWarpgroup;
}

void close_warpgroup() {
  Thread* const first = first_of_warpgroup();
  running->block->of_warpgroups[(first - running->block->threads) / kWarpgroup].n_arrived = 0;
  std::vector<Thread*> all;
  for (int i = 0; i < kWarpgroup; ++i) all.push_back(first + i);
  resume(*running->block->cluster, all.data(), kWarpgroup);
}

void leave_meetings(Thread& thread) {
  const unsigned own = 1u << thread.lane;
  thread.warp->exited |= own;
  const auto waited_for = [&](const Call& call) {
    fail(call.line, std::string(call.name) + ": waits for a thread that has exited");
  };
  for (const Meeting& meeting : thread.warp->open) {
    if ((meeting.mask & own) != 0) waited_for(meeting.call);
  }
  if (thread.block->meeting.n_arrived > 0) waited_for(thread.block->meeting.call);
  if (thread.block->cluster->meeting.n_arrived > 0) waited_for(thread.block->cluster->meeting.call);
}

void meet_block(const Line& line) {
  const Unwatched unwatched;
  Block& block = *running->block;
  const auto n = static_cast<int>(block.cluster->threads.size() / block.cluster->blocks.size());
  meet_all(block.meeting, {"__syncthreads", line}, block.threads, n, block.n_exited, "block");
}

void meet_neighbours(int n, const Line& line) {
  const Unwatched unwatched;
  Block& block = *running->block;
  const auto first = (running - block.threads) / n * n;
  if (n % 32 != 0 || static_cast<std::size_t>(first + n) > block.warps.size() * 32 || first / n > 14)
    fail(line, "sync_neighbours: " + std::to_string(n) + " threads of " + std::to_string(block.warps.size()) + " warps");
  meet_all(block.of_neighbours[1 + first / n], {"sync_neighbours", line}, block.threads + first, n,
           n_exited_of(block, first, n), "block");
}

void meet_cluster(const Line& line) {
  const Unwatched unwatched;
  Cluster& cluster = *running->block->cluster;
  meet_all(cluster.meeting, {"cluster_sync", line}, cluster.threads.data(), static_cast<int>(cluster.threads.size()),
           cluster.n_exited, "cluster");
}

void meet_warp(unsigned mask, const Line& line) {
  const Unwatched unwatched;
  const Call call{"__syncwarp", line};
  bool last = false;
  Meeting& meeting = enter_warp(mask, call, nullptr, last);
  const void* const mark = meeting.mark;
  release(mark);
  if (last) {
    const Lanes lanes(mask);
    shadow::synchronise(lanes.of, lanes.n);
    close_warp(meeting);
  }
  park(call);
  acquire(mark);
}

unsigned lane() { return running->lane; }

std::uint64_t shuffle(unsigned mask, std::uint64_t value, unsigned from_lane, const char* word, const Line& line) {
  const Unwatched unwatched;
  struct Operand {
    std::uint64_t value;
    unsigned from;
  } own{value, from_lane};
  const auto work = [&](Thread* lanes) {
    std::uint64_t given[32];
    const auto operand = [&](unsigned i) -> Operand& { return *static_cast<Operand*>(lanes[i].operand); };
    for (unsigned i = 0; i < 32; ++i) given[i] = (mask >> i & 1) != 0 ? operand(i).value : 0;
    for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
      const auto i = static_cast<unsigned>(std::countr_zero(rest));
      const unsigned from = operand(i).from;
      if ((mask >> from & 1) == 0) {
        fail(line, std::string(word) + ": lane " + std::to_string(i) + " asks lane " + std::to_string(from) +
                       ", which the mask " + name_of(mask) + " leaves out");
      }
      operand(i).value = given[from];
    }
  };
  meet_lanes(mask, {word, line}, &own, work);
  return own.value;
}

unsigned ballot(unsigned mask, bool yes, const char* word, const Line& line) {
  const Unwatched unwatched;
  unsigned own = yes ? 1u << running->lane : 0;
  const auto work = [&](Thread* lanes) {
    unsigned all = 0;
    for (unsigned rest = mask; rest != 0; rest &= rest - 1)
      all |= *static_cast<unsigned*>(lanes[std::countr_zero(rest)].operand);
    for (unsigned rest = mask; rest != 0; rest &= rest - 1)
      *static_cast<unsigned*>(lanes[std::countr_zero(rest)].operand) = all;
  };
  meet_lanes(mask, {word, line}, &own, work);
  return own;
}

}  // namespace tree_attn::emulated::runtime
