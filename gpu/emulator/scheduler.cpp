// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Scheduling of the fibers of a cluster: each switches directly to the next one.
#include "gpu/emulator/sanitizer.hpp"
#include "gpu/emulator/shadow.hpp"
#include "gpu/emulator/thread.hpp"
#include "gpu/types/device_error.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tree_attn::emulated::runtime {

constinit thread_local const Coordinates* running_coordinates = nullptr;
constinit thread_local Thread* running = nullptr;

namespace {

std::exception_ptr error_of(const char* what, Cluster& cluster) {
  Cluster* const all[] = {&cluster};
  return std::make_exception_ptr(DeviceError(what + waits_of(all)));
}

/// The next thread of the queue; null: back to the host thread, because no thread can run or none shall.
Thread* next_ready(Cluster& cluster) {
  if ((++cluster.n_switches & 0x3FF) == 0) {
    if (std::chrono::steady_clock::now() > cluster.grid.ends_at)
      cluster.grid.error = error_of("the launch has run into its deadline:", cluster);
    if (cluster.grid.error) return nullptr;
  }
  // Copies complete at random times, at the latest when no thread can run without them.
  const bool sometimes = cluster.grid.settings.seed != 0 && cluster.random.below(8) == 0;
  while (!cluster.bulk_copies.empty() && (sometimes || cluster.ready_first == nullptr)) {
    deliver_bulk_copy(cluster);
    if (cluster.ready_first != nullptr) break;
  }
  if (!cluster.far_stores.empty() && cluster.grid.settings.seed != 0 && cluster.random.below(8) == 0)
    deliver_far_store(cluster);
  Thread* const next = cluster.ready_first;
  if (next != nullptr) cluster.ready_first = next->next;
  return next;
}

void switch_to(Fiber& from, Cluster& cluster, Thread* next, bool ends = false) {
  running = next;
  running_coordinates = next ? &next->coordinates : nullptr;
  switch_fiber(from, next ? next->fiber : cluster.host, ends);
}

/// Entry point of every fiber.
void run_thread() {
  const Unwatched unwatched;
  Thread& self = *running;
  Cluster& cluster = *self.block->cluster;
  try {
    {
      const Watched watched;
      cluster.grid.run_thread();
    }
    leave_meetings(self);
    self.exited = true;
    ++cluster.n_exited;
    release(self.block->shared);
    if (++self.block->n_exited == static_cast<int>(cluster.threads.size() / cluster.blocks.size()))
      end_shared_memory(*self.block);
  } catch (...) {
    cluster.grid.error = std::current_exception();
  }
  switch_to(self.fiber, cluster, cluster.grid.error ? nullptr : next_ready(cluster), true);
}

/// Gives blocks and threads their coordinates. The memory and the stacks stay from one cluster to the next.
void begin_cluster(Cluster& cluster, int number) {
  const Launch& config = cluster.grid.config;
  const int n_threads = static_cast<int>(config.block.x * config.block.y * config.block.z);
  cluster.random = Random(Random(cluster.grid.settings.seed).next() + static_cast<std::uint64_t>(number));
  cluster.nan = poison(cluster.grid.settings.seed);
  cluster.meeting = {};
  cluster.n_exited = 0;
  cluster.ready_first = nullptr;
  cluster.bulk_copies.clear();
  cluster.waiting.clear();
  cluster.far_stores.clear();
  for (int rank = 0; rank < config.cluster; ++rank) {
    Block& block = cluster.blocks[static_cast<std::size_t>(rank)];
    block = {.cluster = &cluster,
             .rank = rank,
             .threads = &cluster.threads[static_cast<std::size_t>(rank * n_threads)],
             .warps = std::vector<Warp>(static_cast<std::size_t>((n_threads + 31) / 32)),
             .number = number * config.cluster + rank};
    const auto linear = static_cast<unsigned>(block.number);
    const dim3 index{linear % config.grid.x, linear / config.grid.x % config.grid.y, linear / config.grid.x / config.grid.y};
    for (int i = 0; i < n_threads; ++i) {
      Thread& thread = block.threads[i];
      const auto at = static_cast<unsigned>(i);
      thread.coordinates = {
          {at % config.block.x, at / config.block.x % config.block.y, at / config.block.x / config.block.y},
          index,
          config.block,
          config.grid};
      thread.block = &block;
      thread.warp = &block.warps[at / 32];
      thread.lane = at % 32;
      thread.number = rank * n_threads + i;
      thread.exited = thread.waited = false;
      thread.call = {};
      thread.copies.clear();
      thread.group = 0;
    }
    for (std::size_t w = 0; w < block.warps.size(); ++w) {
      const int n_lanes = std::min(32, n_threads - static_cast<int>(w) * 32);
      block.warps[w].lanes = block.threads + w * 32;
      block.warps[w].present = n_lanes == 32 ? ~0u : (1u << n_lanes) - 1;
    }
  }
  begin_shared_memory(cluster);
  shadow::begin_cluster(cluster);
}

/// Runs what can run. @returns whether the cluster has ended
bool run_cluster(Cluster& cluster) {
  if (Thread* const first = next_ready(cluster)) switch_to(cluster.host, cluster, first);
  Grid& grid = cluster.grid;
  // What it stored far arrives one by one, so that others may look in between.
  if ((!cluster.waiting.empty() || !cluster.far_stores.empty()) && !grid.error) return false;
  const bool all_exited = cluster.n_exited == static_cast<int>(cluster.threads.size());
  if (!all_exited && !grid.error) grid.error = error_of("deadlock: no thread can run:", cluster);
  abandon(cluster);
  ++grid.n_ended;
  return true;
}

}  // namespace

void park(const Call& call) {
  Thread& self = *running;
  self.call = call;
  Cluster& cluster = *self.block->cluster;
  Thread* const next = next_ready(cluster);
  if (next != &self) switch_to(self.fiber, cluster, next);
  self.call.name = nullptr;
}

void resume(Cluster& cluster, Thread* const* threads, int n) {
  // A chain in the order in which they will run.
  cluster.released.assign(threads, threads + n);
  bool first = false;
  if (cluster.grid.settings.seed != 0) {
    cluster.random.shuffle(cluster.released.data(), static_cast<std::uint32_t>(n));
    first = cluster.random.below(2) == 0;
  }
  for (int i = 0; i + 1 < n; ++i)
    cluster.released[static_cast<std::size_t>(i)]->next = cluster.released[static_cast<std::size_t>(i) + 1];
  Thread* const head = cluster.released.front();
  Thread* const tail = cluster.released.back();
  tail->next = nullptr;
  // Before the threads that wait already, or after them: warps run ahead of one another.
  if (cluster.ready_first == nullptr) {
    cluster.ready_first = head, cluster.ready_last = tail;
  } else if (first) {
    tail->next = cluster.ready_first, cluster.ready_first = head;
  } else {
    cluster.ready_last->next = head, cluster.ready_last = tail;
  }
}

std::string waits_of(std::span<Cluster* const> clusters) {
  std::map<std::pair<std::string, std::string>, std::pair<int, std::string>> waits;
  for (const Cluster* cluster : clusters) {
    for (const Thread& thread : cluster->threads) {
      if (thread.exited) continue;
      auto& [n, example] = waits[{to_string(thread.call.line), thread.call.name ? thread.call.name : "nothing"}];
      if (n++ == 0) example = to_string(thread.coordinates);
    }
  }
  std::string text;
  for (const auto& [where, who] : waits) {
    const auto& [line, word] = where;
    text += "\n  " + line + ": " + std::to_string(who.first) + " wait at " + word + ", first " + who.second;
  }
  return text;
}

bool begin_and_run(Cluster& cluster, int number) {
  try {
    begin_cluster(cluster, number);
    std::vector<Thread*> all;
    for (Thread& thread : cluster.threads) {
      start_fiber(thread.fiber, run_thread);
      all.push_back(&thread);
    }
    resume(cluster, all.data(), static_cast<int>(all.size()));
    return run_cluster(cluster);
  } catch (...) {
    cluster.grid.error = std::current_exception();
    return true;
  }
}

bool look_again(Cluster& cluster, bool& changed) {
  const std::uint64_t n_passed = cluster.n_passed;
  const int n_exited = cluster.n_exited;
  if (deliver_far_store(cluster)) changed = true;
  const std::vector<Thread*> waiting = std::exchange(cluster.waiting, {});
  if (!waiting.empty()) resume(cluster, waiting.data(), static_cast<int>(waiting.size()));
  const bool has_ended = run_cluster(cluster);
  changed = changed || has_ended || cluster.n_passed != n_passed || cluster.n_exited != n_exited;
  return has_ended;
}

void abandon(Cluster& cluster) {
  for (Thread& thread : cluster.threads) end_fiber(thread.fiber, cluster.host);
}

void wait_for_memory(const Line& line) {
  const Unwatched unwatched;
  running->block->cluster->waiting.push_back(running);
  park({"wait_until", line});
}

void pass_wait() { ++running->block->cluster->n_passed; }

}  // namespace tree_attn::emulated::runtime
