// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A device that holds the largest cluster, for tests of the same kernels on a GPU and under the emulator.
#pragma once

#include "gpu/platform/platform.hpp"
#if !defined(TREE_ATTN_FOR_CUDA)
#include "gpu/platform/emulator/settings.hpp"
#endif

namespace tree_attn::test {

/// Until the end of a scope the emulated device has eight multiprocessors. A whole GPU has more.
class RoomForClusters {
 public:
  RoomForClusters() {}

#if !defined(TREE_ATTN_FOR_CUDA)
 private:
  static emulated::Settings settings() {
    emulated::Settings settings = emulated::settings();
    settings.n_multiprocessors = 8;
    return settings;
  }
  emulated::SettingsScope scope_{settings()};
#endif
};

}  // namespace tree_attn::test
