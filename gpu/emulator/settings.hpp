// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Settings of a run of the emulator: the order of everything that a device may order freely.
#pragma once

#include "gpu/types/code_version.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace tree_attn::emulated {

/// Emulated devices of a process.
inline constexpr int kMaxDevices = 16;

/// A number that a host thread may raise while others read it.
class SharedNumber {
 public:
  SharedNumber(int n) : n_(n) {}
  SharedNumber(const SharedNumber& other) : n_(other.n_.load()) {}
  SharedNumber& operator=(const SharedNumber& other) { return n_ = other.n_.load(), *this; }
  operator int() const { return n_; }
  void raise_to(int least) {
    for (int now = n_; now < least && !n_.compare_exchange_weak(now, least);) {
    }
  }

 private:
  std::atomic<int> n_;
};

/// Settings with which kernels are run. A result may depend on `major` alone, by the sums of tensor cores; a kernel whose
/// result depends on another one has a bug.
struct Settings {
  /// 0: blocks and threads run in ascending order. Any other number shuffles blocks, the threads of every release, the times
  /// at which bulk copies and far stores arrive and the operations of streams run, and picks the NaN that memory starts
  /// with.
  std::uint64_t seed = 0;
  /// Deadline of one launch, in elapsed time, and of a wait in which nothing changes. It does not follow the time limit of a
  /// transport: a kernel that waits for other ranks gives up at the earlier of the two, whatever --timeout says.
  std::chrono::milliseconds deadline{300'000};
  int n_multiprocessors = 4;  ///< what device() reports, and how many blocks may wait for memory at once
  /// Host threads that launch kernels which wait for each other; with 1, a wait without progress is a deadlock at once.
  SharedNumber n_hosts = 1;
  SharedNumber n_devices = 1;    ///< what set_device() takes, at most kMaxDevices
  bool has_peer_access = true;   ///< whether devices reach windows in each other's memory
  int major = 9;                 ///< major compute capability that device() reports, and as which tensor cores add
  int largest_cluster = 16;      ///< blocks of a cluster that the device can hold; 8 on some of compute capability 9
  std::size_t shared_bytes = 0;  ///< dynamic shared memory that a block may have; 0: least_shared_bytes(major)
};

/// Clusters of so many blocks that a device holds at once, if each block fills a multiprocessor.
inline int n_clusters(const Settings& settings, int n_multiprocessors, int size) {
  return size > settings.largest_cluster ? 0 : n_multiprocessors / size;
}

/// The settings of the process. Starts from the environment: TREE_ATTN_EMULATOR_SEED, _MAJOR and _SHARED_KIB.
inline Settings& settings() {
  static Settings process = [] {
    const auto number = [](const char* name, std::uint64_t otherwise) {
      const char* const text = std::getenv(name);
      return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
    };
    Settings start;
    start.seed = number("TREE_ATTN_EMULATOR_SEED", 0);
    start.major = static_cast<int>(number("TREE_ATTN_EMULATOR_MAJOR", 9));
    start.shared_bytes = 1024 * number("TREE_ATTN_EMULATOR_SHARED_KIB", 0);
    return start;
  }();
  return process;
}

/// Other settings until the end of a scope.
class SettingsScope {
 public:
  explicit SettingsScope(const Settings& other) : before_(settings()) { settings() = other; }
  SettingsScope(const SettingsScope&) = delete;
  SettingsScope& operator=(const SettingsScope&) = delete;
  ~SettingsScope() { settings() = before_; }

 private:
  Settings before_;
};

}  // namespace tree_attn::emulated
