// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Memory that the kernels of a plan take beside their input and output.
#pragma once

#include "gpu/engine/launch.hpp"
#include "gpu/platform/launch.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Memory for a plan; counters start at zero.
class DeviceWorkspace {
 public:
  DeviceWorkspace() = default;
  explicit DeviceWorkspace(const LaunchPlan& plan) : floats_(plan.n_floats, MemoryUse::Scratch), counters_(plan.n_counters) {
    counters_.fill(0);
  }
  Workspace get() const { return {floats_.data(), counters_.data()}; }
  bool is_enough_for(const LaunchPlan& plan) const {
    return plan.n_floats <= floats_.size() && plan.n_counters <= counters_.size();
  }
  const DeviceBuffer<unsigned>& counters() const { return counters_; }

 private:
  DeviceBuffer<float> floats_;
  DeviceBuffer<unsigned> counters_;
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
