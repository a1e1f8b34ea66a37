// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A device that holds large clusters, for tests of the same kernels on a GPU and under the emulator.
#pragma once

#include "gpu/platform/launch.hpp"
#if !defined(TREE_ATTN_FOR_CUDA)
#include "gpu/platform/emulator/settings.hpp"
#endif

namespace tree_attn::test {

/// Until the end of a scope the emulated device has 16 multiprocessors. A whole GPU has more, and may hold no cluster of
/// more than 8 blocks all the same.
class RoomForClusters {
 public:
  RoomForClusters() {}
  /// Whether the device has clusters: from compute capability 9 on. On others step 8 of the ladder runs step 7.
  static bool has_clusters() { return TREE_ATTN_PLATFORM::device().major >= 9; }

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
