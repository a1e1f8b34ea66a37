// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Check of a puzzle that is a kernel: the emulator in its shadow mode, under several seeds.
///
/// Races in shared memory, reads of what has not been written, accesses outside a buffer and waits that never end are
/// claims that do not hold, each with the lines that collide.
#pragma once

#include "gpu/platform/device.hpp"
#include "gpu/platform/launch.hpp"
#include "notebooks_cpp/exercises/check.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

using namespace tree_attn::emulated;
using tree_attn::BFloat16, tree_attn::Bytes16, tree_attn::MemoryUse, tree_attn::Packet;

namespace tree_attn::exercise {

/// n whole numbers of -8 to 8: their sums are exact in every order.
inline std::vector<float> numbers(int n, unsigned seed) {
  // Not <random>, which takes longer to compile than an exercise.
  std::uint64_t state = seed + 1;
  std::vector<float> found;
  for (int i = 0; i < n; ++i) {
    state = state * 6364136223846793005 + 1442695040888963407;
    found.push_back(float(int((state >> 33) % 17) - 8));
  }
  return found;
}

/// A copy that kernels may read and not write.
inline emulated::DeviceBuffer<float> on_device(const std::vector<float>& elements) {
  emulated::DeviceBuffer<float> buffer(std::int64_t(elements.size()), MemoryUse::Input);
  buffer.upload(elements);
  return buffer;
}

/// Runs a check under n seeds: each is another order of threads, blocks, copies and packets. A report of the emulator is a
/// claim that does not hold. Prints a line for each distinct fault, with the number of seeds that show it.
template <class Check>
void under_seeds(unsigned n, const Check& check, int n_devices = 1) {
  const std::size_t n_before = claims.faults.size();
  claims.is_seeded = true;
  for (claims.seed = 0; claims.seed < n; ++claims.seed) {
    const emulated::SettingsScope scope({.seed = claims.seed, .deadline = std::chrono::seconds(5), .n_devices = n_devices});
    try {
      check();
    } catch (const DeviceError& error) {
      claim(false, std::string("no fault: ") + error.what());
    }
    emulated::set_device(0);
  }
  claims.is_seeded = false;
  for (std::size_t i = n_before; i < claims.faults.size() && i < kMostFaults; ++i)
    std::printf("  does not hold: %s (%u of %u seeds)\n", claims.faults[i].text.c_str(), claims.faults[i].n_seeds, n);
}

/// Devices that reach each other, with a stream each.
class Devices {
 public:
  explicit Devices(int n) {
    for (int d = 0; d < n; ++d) {
      use(d);
      for (int other = 0; other < n; ++other) {
        if (other != d) emulated::enable_peer_access(other);
      }
      streams_.push_back(std::make_unique<emulated::OwnedStream>());
    }
  }
  /// Makes a device the current one.
  void use(int d) { emulated::set_device(d); }
  /// The stream of a device.
  emulated::Stream stream(int d) const { return *streams_[std::size_t(d)]; }
  /// Until all that is queued has run.
  void wait() {
    for (std::size_t d = 0; d < streams_.size(); ++d) use(int(d)), emulated::synchronise(*streams_[d]);
  }

 private:
  std::vector<std::unique_ptr<emulated::OwnedStream>> streams_;
};

}  // namespace tree_attn::exercise
