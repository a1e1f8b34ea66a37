// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Clusters that run, and clusters that wait for memory and look again in turn.
#include "gpu/emulator/under_way.hpp"

#include "gpu/emulator/global_memory.hpp"
#include "gpu/emulator/sanitizer.hpp"

namespace tree_attn::emulated::runtime {

Residency& residency_of(int device) {
  static Residency all[kMaxDevices];
  return all[device];
}

UnderWay::UnderWay(const LaunchCall& call, LaunchHistory& history, Footprint* footprint, int device)
    : grid_{.config = call.config,
            .run_thread = call.run_thread,
            .settings = call.how,
            .device = device,
            .footprint = footprint},
      device_(residency_of(device)) {
  begin(grid_, history);
  if (call.config.is_cooperative) device_.n_blocks += static_cast<int>(n_blocks_of(call.config));
}

UnderWay::~UnderWay() {
  for (Cluster* cluster : waiting_) {
    abandon(*cluster);
    --device_.n_waiting;
    leave_device();
  }
  if (grid_.config.is_cooperative) device_.n_blocks -= static_cast<int>(n_blocks_of(grid_.config));
  // Not before: by way of the host thread one block would know of another.
  for (Cluster& cluster : clusters_) {
    acquire(&cluster.host);
    for (Thread& thread : cluster.threads) {
      if (thread.fiber.stack != nullptr) give_back(thread.fiber.stack);
    }
  }
}

/// Takes room for a cluster. Where none waits, blocks end by themselves, and how many run at a time is not counted closely.
bool UnderWay::enter_device() {
  const int n = grid_.config.cluster;
  if (grid_.config.is_cooperative) return true;  // has room for all
  if ((device_.n_blocks += n) <= grid_.settings.n_multiprocessors || device_.n_waiting == 0) return true;
  device_.n_blocks -= n;
  return false;
}
void UnderWay::leave_device() {
  if (!grid_.config.is_cooperative) device_.n_blocks -= grid_.config.cluster;
}

bool UnderWay::start_one() {
  if (grid_.error || grid_.n_started == grid_.order.size()) return false;
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
  if (!enter_device()) return false;
  Cluster* const cluster = idle_.back();
  idle_.pop_back();
  if (begin_and_run(*cluster, grid_.order[grid_.n_started++])) {
    idle_.push_back(cluster);
    leave_device();
  } else {
    waiting_.push_back(cluster);
    ++device_.n_waiting;
  }
  return true;
}

bool UnderWay::advance() {
  forget_seen_buffers();
  bool changed = false;
  while (start_one()) changed = true;
  std::erase_if(waiting_, [&](Cluster* cluster) {
    if (grid_.error) return false;
    const bool has_ended = look_again(*cluster, changed);
    if (has_ended) {
      idle_.push_back(cluster);
      --device_.n_waiting;
      leave_device();
    }
    return has_ended;
  });
  return changed;
}

bool UnderWay::has_ended() const { return grid_.error || grid_.n_ended == grid_.order.size(); }

void UnderWay::end() const {
  if (grid_.error) std::rethrow_exception(grid_.error);
}

std::string UnderWay::waits() const {
  std::string text = waits_of(waiting_);
  if (const std::size_t n_left = grid_.order.size() - grid_.n_started; n_left > 0) {
    text += "\n  " + std::to_string(n_left * static_cast<std::size_t>(grid_.config.cluster)) +
            " blocks have not started: more than fit the device beside those that wait";
  }
  return text;
}

}  // namespace tree_attn::emulated::runtime
