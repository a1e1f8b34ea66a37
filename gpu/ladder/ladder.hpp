// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The ladder of kernels, each one file that is read from top to bottom (sections 5 and 6).
///
/// Every rung decodes a few queries over many keys, finishes the rows, and repeats what it needs. Rung 4 has the bits of
/// plain.hpp, and rung 6 defines those of tensor cores; the library kernels have both, share no code with them but the merge
/// and the tree, and can leave states. A rung says in its first lines what it changed; its *floor*, the time of the bytes
/// that it requests at the rate of a kernel that only reads; what was predicted; and what was measured, if it was.
#pragma once

#include "gpu/engine/kernel.hpp"

#include <span>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// A rung, in the words of any kernel that decodes.
using LadderStep = DecodeKernel;

/// All rungs, in order; and after them the kernels of the library.
std::span<const LadderStep* const> ladder();
std::span<const DecodeKernel* const> all_kernels();
extern const LadderStep kNaive, kFused, kVectors, kSplit, kCopies, kTensor, kUnits;

}  // namespace tree_attn::TREE_ATTN_PLATFORM
