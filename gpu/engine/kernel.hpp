// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A kernel that decodes, as its callers see it; and that of the library (section 5, Alg. 3).
#pragma once

#include "gpu/engine/launch.hpp"

#include <limits>
#include <string>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// All that is asked about a kernel, by the program or by a test. The problem holds pointers into device memory.
struct DecodeKernel {
  const char* name;
  /// Most blocks that may share the keys of a kv head; 1: there are no splits.
  int max_splits = std::numeric_limits<int>::max();
  bool is_canonical = true;   ///< whether it adds in the order of the canonical tree: then no bit depends on splits
  bool is_fused = false;      ///< whether it adds a leaf by fused multiply-adds, in a chain: these have bits of their own
  bool keeps_states = false;  ///< whether it can leave states instead of finished rows
  /// Longest chain of additions that a weight passes through, for the error bound: n_a of ErrorModel.
  double (*n_additions)(const DecodeParams& params, DType dtype);
  /// Why it cannot take such a problem, in a few words; empty if it can.
  std::string (*refusal)(const DecodeParams& params, DType dtype);
  /// Plans its launch. @pre refusal() is empty
  LaunchPlan (*plan)(const DecodeParams& params, DType dtype, const LaunchOptions& options) = nullptr;
  /// Launches. @pre plan() is of the same shapes
  void (*run)(const DecodeParams& params, DType dtype, const DeviceOutput& output, const LaunchPlan& plan,
              const Workspace& workspace, Stream stream) = nullptr;
};

/// Additions of the canonical tree over keys; and of a leaf on tensor cores, which add the parts of its weights one after
/// the other and truncate, and the tree above.
double tree_additions(const DecodeParams& params, DType dtype);
double tensor_additions(const DecodeParams& params, DType dtype);

/// The kernel of the library: equal runs of units over all blocks (equal_runs.cuh).
extern const DecodeKernel kEqualRuns;

}  // namespace tree_attn::TREE_ATTN_PLATFORM
