// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The list of steps, and of all kernels.
#include "gpu/ladder/ladder.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

std::span<const DecodeKernel* const> all_kernels() {
  static constexpr const DecodeKernel* kKernels[] = {&kNaive,  &kFused,  &kVectors, &kSplit,
                                                     &kCopies, &kTensor, &kUnits,   &kEqualRuns};
  return kKernels;
}

std::span<const LadderStep* const> ladder() { return all_kernels().first(7); }

}  // namespace tree_attn::TREE_ATTN_PLATFORM
