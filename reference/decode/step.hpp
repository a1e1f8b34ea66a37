// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What one decode step is asked: the queries, and the positions that each of them sees (section 5).
#pragma once

#include "tree_attn/reference/state/key_range.hpp"
#include "tree_attn/reference/tensor/view.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tree_attn {

/// The positions that a query sees, over the whole sequence: [begin, end).
using Seen = KeyRange;

/// One decode step. It refers to memory of the caller.
struct Step {
  TensorView q;                           ///< queries [b, n_h, l, d_h]
  std::span<const std::int64_t> lengths;  ///< keys in use per batch entry [b], over the whole sequence and not over a shard

  /// Keys of the longest batch entry; 0 without entries.
  std::int64_t longest() const { return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end()); }
  /// What the queries of a batch entry see: all positions in use.
  Seen seen(std::int64_t entry) const { return {0, lengths[static_cast<std::size_t>(entry)]}; }
};

}  // namespace tree_attn
