// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A device that holds large clusters, for tests of the same kernels on a GPU and under the emulator.
#pragma once

#include "gpu/platform/launch.hpp"
#if !defined(TREE_ATTN_FOR_CUDA)
#include "gpu/emulator/settings.hpp"
#endif

#include <algorithm>

namespace tree_attn::test {

/// Until the end of a scope the emulated device has 16 multiprocessors. A whole GPU has more, and may hold no cluster of
/// more than 8 blocks all the same.
class RoomForClusters {
 public:
  RoomForClusters() {}
  /// Tests whether the device has clusters: from compute capability 9 on. On others `short-end` runs equal runs.
  static bool has_clusters() { return TREE_ATTN_PLATFORM::device().major >= 9; }
  /// Blocks of the largest cluster that the device holds for certain; 0 where it has no clusters.
  static int largest() { return has_clusters() ? std::min(kMost, TREE_ATTN_PLATFORM::device().n_multiprocessors) : 0; }

 private:
#if defined(TREE_ATTN_FOR_CUDA)
  static constexpr int kMost = 8;
#else
  static constexpr int kMost = 16;
  static emulated::Settings settings() {
    emulated::Settings settings = emulated::settings();
    settings.n_multiprocessors = 16;
    return settings;
  }
  emulated::SettingsScope scope_{settings()};
#endif
};

}  // namespace tree_attn::test
