// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Parts of kernels, each in a kernel that does nothing else, for tests of that part: what part_kernels.cu launches.
#pragma once

#include "tree_attn/gpu/engine/listed_params.hpp"
#include "tree_attn/gpu/platform/launch.hpp"
#include "tree_attn/reference/tensor/dtype.hpp"

#include <vector>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Components of the states that are joined: 8 lanes of 4.
inline constexpr int kJoinDim = 32;

/// Cuts a range into parts, builds the forest of each from the states of its positions, and joins them by join_splits().
/// @param states [range.size()][2 + kJoinDim]
/// @param n_entries subtrees that fit into the shared memory of the join
/// @returns the roots that are left and, after them, their fold: [n_roots + 1][2 + kJoinDim]
std::vector<float> join_splits_on_device(const std::vector<float>& states, KeyRange range, int n_parts, int n_entries);

/// Elements of a row of the tiles below, and rows of a leaf.
inline constexpr int kTileDim = 128, kTileRows = 64;

/// How a TileRing is asked to copy.
struct TileRingOptions {
  bool by_tensor_maps = false;  ///< else cp.async
  bool aligned = true;          ///< else plain loads
  bool only_finite = false;     ///< zeros in place of values that are not finite
  int n_stages = 3;             ///< of a ring by tensor maps; by cp.async there are three
};

/// All tiles that a TileRing hands out for ranges of positions of a cache that starts at position `begin`, one range after
/// the other, as add_scores() and add_values() find them; rows of values without a key are cleared.
/// @param k, v F16, [n][d_h] and [n][d_v] @param length keys in use
/// @param n_leaves leaf parts of all ranges
/// @returns [n_leaves][keys, values][kTileRows][kTileDim]
std::vector<float> tile_ring_on_device(const std::vector<std::uint16_t>& k, const std::vector<std::uint16_t>& v, int d_h,
                                       int d_v, std::int64_t begin, std::int64_t length, const std::vector<KeyRange>& ranges,
                                       int n_leaves, const TileRingOptions& options);

/// WarpScan over a batch with counts[i] work items each: their sum, then for each of them the entry that it lies in and the
/// work items before that entry. Every second one is looked for from the entry of one before it.
std::vector<Count> scan_on_device(const std::vector<Count>& counts);

/// How often a thread asks for the leaves of a batch entry in a launch of the library kernel, all blocks together, over a
/// batch of sequences of one key.
unsigned n_asked_on_device(std::int64_t batch, int n_blocks);

/// Queue a kernel that writes a word; and one that may begin before the launch before it has ended, and reads the word
/// without a wait. On a GPU the latter may read anything; under the emulator it fails if a launch that may still run has
/// written it.
void queue_write(unsigned* word);
void queue_early_read(const unsigned* word);

/// Whether the library kernel copies rows of listed leaves in the background, as its ring does where they are aligned.
bool copies_listed_rows(const ListedParams& params, DType dtype);

/// Launches the library kernel over listed leaves.
void run_listed(const ListedParams& params, DType dtype, const DeviceOutput& output);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
