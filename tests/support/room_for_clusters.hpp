// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A device that holds large clusters, for tests of the same kernels on a GPU and under the emulator.
#pragma once

#include "gpu/platform/platform.hpp"
#if !defined(TREE_ATTN_FOR_CUDA)
#include "gpu/platform/emulator/settings.hpp"
#endif

namespace tree_attn::test {

/// Until the end of a scope the emulated device has 16 multiprocessors. A whole GPU has more, and may hold no cluster of
/// more than 8 blocks all the same.
class RoomForClusters {
 public:
  RoomForClusters() {}

#if defined(TREE_ATTN_FOR_CUDA)
  static constexpr int kLargest = 8;  ///< blocks of a cluster that the device holds for certain
#else
  static constexpr int kLargest = 16;

 private:
  static emulated::Settings settings() {
    emulated::Settings settings = emulated::settings();
    settings.n_multiprocessors = 16;
    return settings;
  }
  emulated::SettingsScope scope_{settings()};
#endif
};

}  // namespace tree_attn::test
