// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Launches shared out over host threads.
#include "tree_attn/gpu/platform/emulator/under_way.hpp"

#include "tree_attn/gpu/platform/emulator/sanitizer.hpp"

#include <algorithm>
#include <exception>
#include <utility>

namespace tree_attn::emulated::runtime {

UnderWay::UnderWay(const Launch& config, const Settings& how, std::function<void()> run_thread, LaunchHistory& history,
                   Footprint* footprint, int device)
    : grid_{.config = config,
            .run_thread = std::move(run_thread),
            .settings = how,
            .device = device,
            .footprint = footprint,
            .residency = &residency_of(device)},
      share_(grid_) {
  begin(grid_, history);
  if (config.is_cooperative) grid_.residency->n_blocks += static_cast<int>(grid_.order.size()) * config.cluster;
  const int n_cores = static_cast<int>(std::thread::hardware_concurrency());
  const int wanted = how.n_workers > 0 ? how.n_workers : std::max(1, n_cores);
  const int n_workers = std::min(wanted, static_cast<int>(grid_.order.size()));
  for (int i = 1; i < n_workers; ++i) {
    try {
      Helper& helper = helpers_.emplace_back();
      // What the host has done before comes before what the helper does.
      const Watched watched;
      helper.thread = std::thread([this, &helper] { help(helper.runner); });
    } catch (const std::exception&) {
      // Fewer helpers do: a launch needs none.
      helpers_.remove_if([](const Helper& helper) { return !helper.thread.joinable(); });
      break;
    }
  }
}

UnderWay::~UnderWay() {
  grid_.failed = true;
  join_helpers();
  if (grid_.config.is_cooperative) grid_.residency->n_blocks -= static_cast<int>(grid_.order.size()) * grid_.config.cluster;
}

void UnderWay::help(Runner& runner) {
  const Unwatched unwatched;
  try {
    run_share(runner);
  } catch (...) {
    keep_error(grid_, std::current_exception());
  }
  runner.leave();
}

void UnderWay::run_share(Runner& runner) {
  Share share(grid_);
  for (int n_idle = 0; !share.is_done();) {
    const std::uint64_t looked = runner.look();
    if (share.advance()) {
      Runner::changed(), runner.is_busy(), n_idle = 0;
    } else if (!share.is_done()) {
      if (runner.is_stuck(looked)) stop_stuck();
      pause(n_idle++);
    }
  }
  if (grid_.is_stuck) {
    const std::lock_guard lock(grid_.mutex);
    share.count_waits(waits_);
  }
}

bool UnderWay::has_ended() const { return grid_.failed || grid_.n_ended == static_cast<int>(grid_.order.size()); }

bool UnderWay::helpers_are_idle() const {
  return std::all_of(helpers_.begin(), helpers_.end(), [](const Helper& helper) { return helper.runner.is_idle(); });
}

void UnderWay::join_helpers() {
  const Watched watched;
  for (Helper& helper : helpers_) {
    if (helper.thread.joinable()) helper.thread.join();
  }
}

void UnderWay::end() {
  join_helpers();
  if (grid_.error) std::rethrow_exception(grid_.error);
}

void UnderWay::stop_stuck() {
  // In this order: a helper that sees the failure must also see why, and count its waits.
  grid_.is_stuck = true;
  grid_.failed = true;
}

std::string UnderWay::give_up() {
  stop_stuck();
  join_helpers();
  share_.count_waits(waits_);
  const int n_left = static_cast<int>(grid_.order.size()) - grid_.n_started;
  std::string text = to_string(waits_);
  if (n_left > 0) {
    text += "\n  " + std::to_string(n_left * grid_.config.cluster) +
            " blocks have not started: more than fit the device beside those that wait";
  }
  return text;
}

}  // namespace tree_attn::emulated::runtime
