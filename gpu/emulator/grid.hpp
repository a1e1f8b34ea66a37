// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One launch: what every thread runs, over how many blocks.
#pragma once

#include "gpu/emulator/coordinates.hpp"
#include "gpu/emulator/settings.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <vector>

namespace tree_attn::emulated {

/// Launch configuration of a kernel.
struct Launch {
  dim3 grid{}, block{};
  std::size_t shared_bytes = 0;  ///< dynamic shared memory of a block
  int cluster = 1;               ///< blocks of a cluster, along x
  bool continues = false;        ///< whether it reads scratch memory that the launch before it wrote
  bool overlaps = false;         ///< whether it may begin before the launch before it ends: see wait_for_previous_launch()
  bool is_cooperative = false;   ///< whether its blocks wait for each other: then all have to fit the device at once
  Line line = Line::current();   ///< where this was written, for reports
};

namespace runtime {

/// Dynamic shared memory that a block may have.
inline std::size_t shared_bytes_of(const Settings& how) {
  return how.shared_bytes > 0 ? how.shared_bytes : least_shared_bytes(how.major);
}

/// Number of blocks in all clusters of a launch.
inline std::uint64_t n_blocks_of(const Launch& config) {
  return std::uint64_t{config.grid.x} * config.grid.y * config.grid.z;
}

class Footprint;

/// State that a launch of a stream passes to the next one.
struct LaunchHistory {
  LaunchHistory();
  std::uint64_t scratch = 0;  ///< Grid::scratch of the last one
  std::uint64_t number = 0;   ///< Grid::number of the last one; those of different streams are far apart
  std::uint64_t running = 0;  ///< Grid::running of the last one
};

/// A launch under way.
struct Grid {
  Launch config;
  std::function<void()> run_thread;
  Settings settings{};
  int device = 0;
  Footprint* footprint = nullptr;  ///< where there are streams to race with
  std::uint64_t scratch = 0;       ///< the same in launches that share what scratch memory holds
  std::uint64_t number = 0;        ///< larger than that of the launch before it on its stream
  std::uint64_t running = 0;  ///< the first launch that may still run when this one begins: its own number without overlaps
  std::chrono::steady_clock::time_point ends_at{};
  std::vector<int> order{};                ///< of the clusters
  std::size_t n_started = 0, n_ended = 0;  ///< clusters
  std::exception_ptr error{};              ///< the first, which ends the launch
};

/// @throws DeviceError for a launch that no device could start
void check(const Launch& config, const Settings& how);
/// Orders a launch after those before it on its stream, and its blocks among themselves.
void begin(Grid& grid, LaunchHistory& history);

}  // namespace runtime
}  // namespace tree_attn::emulated
