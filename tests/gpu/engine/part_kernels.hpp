// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Parts of kernels, each in a kernel that does nothing else, for tests of that part: what part_kernels.cu launches.
#pragma once

#include "gpu/engine/params.hpp"
#include "gpu/platform/launch.hpp"
#include "reference/tensor/dtype.hpp"

#include <cstdint>
#include <vector>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Components of the states: 8 lanes of 4.
inline constexpr int kStateDim = 32;

/// merge(left, right) of n pairs of states, [n][2 + kStateDim] each, by lanes that hold four components.
std::vector<float> merge_on_device(const std::vector<float>& left, const std::vector<float>& right);

/// The states of n leaves, by weigh_leaf() and sum_of_eight(): scores [n][64], values [n][64][kStateDim]; returns [n][2 +
/// kStateDim].
std::vector<float> leaves_on_device(const std::vector<float>& scores, const std::vector<float>& values);

/// Combines the states of the units of a shard of one row, by combine().
/// @param states of its units from left to right, [n][2 + kStateDim] @param log leaves of a unit, as a power of two
/// @param n_warps of a block @returns the states of the subtrees that cover the shard, [n][2 + kStateDim]
std::vector<float> combine_on_device(const std::vector<float>& states, KeyRange leaves, int log, int n_warps);

/// WarpScan over a batch with counts[i] work items each: their sum, then for each of them the entry that it lies in and the
/// work items before that entry. Every second one is looked for from the entry of one before it.
std::vector<Count> scan_on_device(const std::vector<Count>& counts);

/// Counts how often a thread asks for the leaves of a batch entry in a launch of the library kernel, all blocks together,
/// over a batch of sequences of one key.
unsigned n_asked_on_device(std::int64_t batch, int n_blocks);

/// Units of a step of the library over full sequences, on the device at hand.
struct UnitCounts {
  std::int64_t units = 0;        ///< of all sequences of one kv head
  std::int64_t items = 0;        ///< a unit and a query tile each
  std::int64_t state_bytes = 0;  ///< of all units and rows
  std::int64_t cache_bytes = 0;  ///< keys and values, once
  int blocks = 0;                ///< of the walks
};
/// @param params axes and capacity; keys and values with an address if values are the first components of the keys
UnitCounts count_units(DecodeParams params, DType dtype);

/// finish_lse() and finish_value() of n states of one component, [n][3]; returns [n][2].
std::vector<float> finish_on_device(const std::vector<float>& states);

/// exp2_of_sum(): 2^(scale x - shift) as tensor walks have it. @param shift a whole number of at most 2^22
std::vector<float> exp2_on_device(const std::vector<float>& x, float scale, float shift);

/// widen() of every pattern of 16 bits, and the bits that narrow() gives. @param dtype F16 or BF16
std::vector<float> widened_on_device(DType dtype);
std::vector<std::uint16_t> narrowed_on_device(DType dtype, const std::vector<float>& elements);

/// Queue a kernel that writes a word; and one that may begin before the launch before it has ended, and reads the word
/// without a wait. On a GPU the latter may read anything; under the emulator it fails if a launch that may still run has
/// written it.
void queue_write(unsigned* word);
void queue_early_read(const unsigned* word);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
