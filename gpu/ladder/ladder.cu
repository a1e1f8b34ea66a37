// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The list of steps.
#include "gpu/ladder/ladder.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

std::span<const LadderStep* const> ladder() {
  static constexpr const LadderStep* kSteps[] = {&kNaive,  &kFused,  &kVectors,   &kSplit,
                                                 &kCopies, &kTensor, &kEqualRuns, &kShortEnd};
  return kSteps;
}

double chain_additions(const DecodeParams& params, DType) { return static_cast<double>(params.end - params.begin) + 4; }

double leaf_additions(const DecodeParams& params, DType) {
  return static_cast<double>(kLeafKeys) + n_tree_additions(params.end - params.begin);
}

double tensor_additions(const DecodeParams& params, DType) {
  // Up to four queries: 64 products with upper parts, and the sum with the other column, whose 128 products are smaller by a
  // factor of 2^7 and count as one. More queries: 64 products with each of three parts in one column. Tensor cores truncate
  // sums, which may cost two roundings each.
  const double n_leaf = params.group <= 4 ? static_cast<double>(kLeafKeys) + 2 : 3 * static_cast<double>(kLeafKeys);
  return 2 * n_leaf + n_tree_additions(params.end - params.begin);
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
