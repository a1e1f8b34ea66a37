// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Clusters that run, and clusters that wait for memory and look again in turn.
#include "tree_attn/gpu/platform/emulator/share.hpp"

#include "tree_attn/gpu/platform/emulator/global_memory.hpp"
#include "tree_attn/gpu/platform/emulator/sanitizer.hpp"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

namespace tree_attn::emulated::runtime {
namespace {

constexpr std::uint64_t kBusy = ~std::uint64_t{0};

/// How often anything has changed that a thread may wait for.
std::atomic<std::uint64_t> n_changes{0};

struct Runners {
  std::mutex mutex;
  std::vector<Runner*> all;
};
Runners& runners() {
  static Runners* const every = new Runners;
  return *every;
}

/// Takes room for a cluster. Where none waits, blocks end by themselves, and how many run at a time is not counted closely.
bool enter_device(const Grid& grid) {
  Residency& device = *grid.residency;
  const int n = grid.config.cluster;
  if (grid.config.is_cooperative) return true;  // has room for all
  if ((device.n_blocks += n) <= grid.settings.n_multiprocessors || device.n_waiting == 0) return true;
  device.n_blocks -= n;
  return false;
}
void leave_device(const Grid& grid) {
  if (!grid.config.is_cooperative) grid.residency->n_blocks -= grid.config.cluster;
}

}  // namespace

Runner::Runner(Kind kind) : kind_(kind), idle_at_(kBusy) {
  const std::lock_guard lock(runners().mutex);
  runners().all.push_back(this);
}
Runner::~Runner() { leave(); }
void Runner::leave() {
  const std::lock_guard lock(runners().mutex);
  if (std::erase(runners().all, this) > 0) ++n_changes;
  has_left_ = true;
}
std::uint64_t Runner::look() const { return n_changes; }
void Runner::changed() { ++n_changes; }
void Runner::is_busy() { idle_at_ = kBusy, deadlocked_ = false; }
bool Runner::is_idle() const { return has_left_ || idle_at_ == n_changes; }

bool Runner::is_stuck(std::uint64_t looked) {
  const std::lock_guard lock(runners().mutex);
  idle_at_ = looked;
  const std::uint64_t now = n_changes;
  const std::vector<Runner*>& all = runners().all;
  const auto n_hosts = std::count_if(all.begin(), all.end(), [](const Runner* runner) { return runner->kind_ == kHost; });
  if (n_hosts >= settings().n_hosts && !others_may_store() &&
      std::all_of(all.begin(), all.end(), [now](const Runner* runner) { return runner->idle_at_ == now; })) {
    for (Runner* runner : all) runner->deadlocked_ = true;
  }
  return deadlocked_;
}

void pause(int n_idle) {
  if (n_idle < 64) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

Share::~Share() {
  for (Cluster* cluster : waiting_) {
    abandon(*cluster);
    --grid_.residency->n_waiting;
    leave_device(grid_);
  }
  // Not before: by way of the host thread one block would know of another.
  for (Cluster& cluster : clusters_) {
    acquire(&cluster.host);
    for (Thread& thread : cluster.threads) {
      if (thread.fiber.stack != nullptr) give_back(thread.fiber.stack);
    }
  }
}

bool Share::is_done() const {
  return grid_.failed || (waiting_.empty() && grid_.n_started >= static_cast<int>(grid_.order.size()));
}

void Share::count_waits(Waits& waits) const {
  for (const Cluster* cluster : waiting_) runtime::count_waits(*cluster, waits);
}

bool Share::start_one() {
  if (grid_.failed || grid_.n_started >= static_cast<int>(grid_.order.size())) return false;
  // First, because it may throw.
  if (idle_.empty()) {
    const Launch& config = grid_.config;
    Cluster& cluster = clusters_.emplace_back(grid_);
    adopt_host_thread(cluster.host);
    cluster.threads.resize(std::size_t{config.block.x} * config.block.y * config.block.z *
                           static_cast<std::size_t>(config.cluster));
    cluster.blocks.resize(static_cast<std::size_t>(config.cluster));
    idle_.push_back(&cluster);
  }
  if (!enter_device(grid_)) return false;
  const int i = grid_.n_started++;
  if (i >= static_cast<int>(grid_.order.size())) {
    leave_device(grid_);
    return false;
  }
  Cluster* const cluster = idle_.back();
  idle_.pop_back();
  if (begin_and_run(*cluster, grid_.order[static_cast<std::size_t>(i)])) {
    idle_.push_back(cluster);
    leave_device(grid_);
  } else {
    waiting_.push_back(cluster);
    ++grid_.residency->n_waiting;
  }
  return true;
}

bool Share::advance() {
  forget_seen_buffers();
  bool changed = false;
  while (start_one()) changed = true;
  std::erase_if(waiting_, [&](Cluster* cluster) {
    if (grid_.failed) return false;
    const bool has_ended = look_again(*cluster, changed);
    if (has_ended) {
      idle_.push_back(cluster);
      --grid_.residency->n_waiting;
      leave_device(grid_);
    }
    return has_ended;
  });
  return changed;
}

}  // namespace tree_attn::emulated::runtime
