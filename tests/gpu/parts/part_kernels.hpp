// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Parts of kernels, each in a kernel that does nothing else, for tests of that part: what part_kernels.cu launches.
#pragma once

#include "gpu/parts/decode_params.hpp"
#include "gpu/platform/launch.hpp"

#include <vector>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Components of the states that are joined: 8 lanes of 4.
inline constexpr int kJoinDim = 32;

/// Cuts a range into parts, builds the forest of each from the states of its positions, and joins them by join_splits().
/// @param states [range.size()][2 + kJoinDim]
/// @param n_entries subtrees that fit into the shared memory of the join
/// @returns the folded state, [2 + kJoinDim]
std::vector<float> join_splits_on_device(const std::vector<float>& states, KeyRange range, int n_parts, int n_entries);

/// Rows of one step in a LaneRing of two stages, copied and read by a warp of four sub-warps.
inline constexpr int kRingRows = 8, kRingDim = 32;

/// Copies eight keys and eight values into either stage by LaneRing::start(), and reads them back.
/// @param keys, values [2][8][stride], a stage after the other @param valid bit i: row i may be read
/// @returns [2][keys, values][8][kRingDim]
std::vector<float> lane_ring_on_device(const std::vector<float>& keys, const std::vector<float>& values, int stride, int d_h,
                                       int d_v, unsigned valid, bool aligned);

/// Elements of a row of a tile, and rows of an item.
inline constexpr int kTileDim = 64, kTileRows = 16;

/// All items that a TileRing hands out for a range of positions of a cache that starts at position `begin`.
/// @param k, v F16, [n][d_h] and [n][d_v] @param length keys in use
/// @returns [n_items][kTileRows][kTileDim]
std::vector<float> tile_ring_on_device(const std::vector<std::uint16_t>& k, const std::vector<std::uint16_t>& v, int d_h,
                                       int d_v, std::int64_t begin, std::int64_t length, KeyRange range, int n_items,
                                       bool aligned);

/// split_weights() of pairs of neighbours: [n / 2][3] words with a part of either, the first weight below the second.
std::vector<std::uint32_t> split_weights_on_device(bool is_bf16, const std::vector<float>& weights);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
