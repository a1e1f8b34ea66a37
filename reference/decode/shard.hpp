// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Keys and values of one shard, row by row (section 5).
#pragma once

#include "reference/state/owned_leaves.hpp"
#include "reference/tensor/shape.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tree_attn {

/// Keys and values of a range, in the rows of OwnedLeaves: in the contiguous order row 0 is the key at `begin`.
struct Shard {
  TensorView k;                                            ///< [b, n_kv, n, d_h]
  TensorView v;                                            ///< [b, n_kv, n, d_v]
  std::int64_t begin = 0;                                  ///< where the range begins
  std::int64_t end() const { return begin + k.shape[2]; }  ///< one past the last position
};

/// Keys [b, n_kv, n, d_h] that lie densely in memory, and the values after them, or in them. @param n rows per head
Shard dense_shard(const AttentionShape& shape, std::int64_t n, const std::byte* memory, std::int64_t begin, bool on_device);

/// Rows of each batch entry, OwnedLeaves::n_keys(). @param lengths keys of the sequences [b]
/// @throws std::out_of_range if one is negative
std::vector<std::int64_t> rows_in_use(std::span<const std::int64_t> lengths, const OwnedLeaves& leaves);

}  // namespace tree_attn
