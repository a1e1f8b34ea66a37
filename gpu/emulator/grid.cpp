// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A launch: checked, and its clusters in order.
#include "gpu/emulator/grid.hpp"

#include "gpu/emulator/random.hpp"
#include "gpu/types/device_error.hpp"

#include <atomic>
#include <cstring>
#include <numeric>
#include <string>

namespace tree_attn::emulated::runtime {
namespace {

/// Launches that begin with fresh scratch memory.
std::atomic<std::uint64_t> n_scratches{0};
/// Streams so far, and launches that one of them can count.
std::atomic<std::uint64_t> n_histories{0};
constexpr std::uint64_t kMaxLaunches = std::uint64_t{1} << 40;

std::string name_of(const dim3& d) {
  std::string text = "(";
  return text.append(std::to_string(d.x))
      .append(", ")
      .append(std::to_string(d.y))
      .append(", ")
      .append(std::to_string(d.z))
      .append(")");
}

}  // namespace

LaunchHistory::LaunchHistory() : number(++n_histories * kMaxLaunches), running(number) {}

/// The limits of the device.
void check(const Launch& config, const Settings& how) {
  const std::uint64_t n_threads = std::uint64_t{config.block.x} * config.block.y * config.block.z;
  const std::uint64_t n_blocks = n_blocks_of(config);
  if (n_threads == 0 || n_threads > 1024)
    throw DeviceError("launch: block " + name_of(config.block) + ": 1 to 1024 threads");
  if (n_blocks == 0 || n_blocks > 1u << 30 || config.grid.y > 65535 || config.grid.z > 65535) {
    throw DeviceError("launch: grid " + name_of(config.grid) + " cannot be launched");
  }
  if (config.shared_bytes > shared_bytes_of(how)) {
    throw DeviceError("launch: " + std::to_string(config.shared_bytes) + " bytes of shared memory; a block may have " +
                      std::to_string(shared_bytes_of(how)));
  }
  if (config.cluster < 1 || config.cluster > 16 || config.grid.x % static_cast<unsigned>(config.cluster) != 0) {
    throw DeviceError("launch: clusters of " + std::to_string(config.cluster) + " blocks in a grid of " +
                      name_of(config.grid) + ": 1 to 16, and a divisor of the first extent");
  }
  if (config.cluster > 1 && (how.major < 9 || n_clusters(how, how.n_multiprocessors, config.cluster) == 0)) {
    throw DeviceError("launch: clusters of " + std::to_string(config.cluster) + " blocks; the device has " +
                      std::to_string(how.n_multiprocessors) + " multiprocessors, compute capability " +
                      std::to_string(how.major) + " and clusters of up to " + std::to_string(how.largest_cluster));
  }
  if (config.overlaps && how.major < 9)
    throw DeviceError("launch: overlaps the one before it, which compute capability " + std::to_string(how.major) +
                      " cannot");
  if (config.is_cooperative && n_blocks > static_cast<std::uint64_t>(how.n_multiprocessors)) {
    throw DeviceError("launch: a cooperative grid of " + std::to_string(n_blocks) + " blocks; " +
                      std::to_string(how.n_multiprocessors) + " fit the device at once");
  }
}

std::string to_string(const Line& line) {
  // The part of a path that a reader of the tree knows.
  const char* name = line.file_name();
  if (const char* const last = std::strrchr(name, '/')) name = last + 1;
  return std::string(name) + ":" + std::to_string(line.line());
}

std::string to_string(const Coordinates& coordinates) {
  return "block " + name_of(coordinates.block) + ", thread " + name_of(coordinates.thread);
}

void fail(const Line& line, const std::string& text) {
  throw DeviceError(to_string(line) + ": " + text + (running_coordinates ? "; " + to_string(*running_coordinates) : ""));
}

void begin(Grid& grid, LaunchHistory& history) {
  if (!grid.config.continues || history.scratch == 0) history.scratch = ++n_scratches;
  const bool is_first = history.number % kMaxLaunches == 0;
  grid.scratch = history.scratch;
  grid.number = ++history.number;
  if (!grid.config.overlaps || is_first) history.running = grid.number;
  grid.running = history.running;
  grid.ends_at = std::chrono::steady_clock::now() + grid.settings.deadline;
  grid.order.resize(n_blocks_of(grid.config) / static_cast<unsigned>(grid.config.cluster));
  std::iota(grid.order.begin(), grid.order.end(), 0);
  if (grid.settings.seed != 0) {
    Random(grid.settings.seed).shuffle(grid.order.data(), static_cast<std::uint32_t>(grid.order.size()));
  }
}

}  // namespace tree_attn::emulated::runtime
