// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The ladder of kernels, one step a file, and what all of them share on the host (sections 5 and 6).
///
/// Every step computes the same thing, attention of a few queries over many keys, from the definition down to the kernel
/// that the library uses. A step says in its first lines what it changed and what that should do to the bytes and the time.
#pragma once

#include "gpu/parts/launch_plan.hpp"

#include <limits>
#include <span>
#include <string>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// As many splits as a caller asks for.
inline constexpr int kAnySplits = std::numeric_limits<int>::max();

/// One step: all that is asked about it, by the program or by a test. The problem holds pointers into device memory.
struct LadderStep {
  const char* name;
  const char* brief;
  int max_splits = kAnySplits;  ///< most blocks that may share the keys of a kv head; 1: the step has no splits
  /// Whether it adds in the order of the canonical tree: its bits do not depend on splits.
  bool is_canonical = true;
  bool keeps_states = false;  ///< whether it can leave states instead of finished rows
  /// Longest chain of additions that a weight passes through, for the error bound: n_a of ErrorModel.
  double (*n_additions)(const DecodeParams& params, DType dtype);
  /// Why this step cannot take such a problem, in a few words; empty if it can.
  std::string (*refusal)(const DecodeParams& params, DType dtype);
  /// How it will be launched. @pre refusal() is empty
  LaunchPlan (*plan)(const DecodeParams& params, DType dtype, const LaunchOptions& options) = nullptr;
  /// Launches. @pre plan() is of the same shapes
  void (*run)(const DecodeParams& params, DType dtype, const DeviceOutput& output, const LaunchPlan& plan,
              const Workspace& workspace, Stream stream) = nullptr;
};

/// All steps, from the first to the library kernel, which is the last.
std::span<const LadderStep* const> ladder();
inline const LadderStep& library_step() { return *ladder().back(); }

/// Additions of a step that adds key after key; of a chain of fused multiply-adds inside a leaf and the tree above; of a
/// leaf on tensor cores, which add the parts of its weights one after the other and truncate, and the tree above.
double chain_additions(const DecodeParams& params, DType dtype);
double leaf_additions(const DecodeParams& params, DType dtype);
double tensor_additions(const DecodeParams& params, DType dtype);

/// The steps in order, one per file.
extern const LadderStep kNaive, kFused, kVectors, kSplit, kCopies, kTensor, kEqualRuns, kShortEnd;

}  // namespace tree_attn::TREE_ATTN_PLATFORM
