// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranges of positions, and how a sequence is cut into them (section 5.3).
#pragma once

#include "reference/state/host_device.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace tree_attn {

/// A range of positions [begin, end): what one rank holds, or one block, or one warp.
struct KeyRange {
  std::int64_t begin = 0, end = 0;
  TREE_ATTN_HOST_DEVICE std::int64_t size() const { return end - begin; }
  TREE_ATTN_HOST_DEVICE bool empty() const { return begin >= end; }
};

/// Cuts N positions into p runs as even as leaves of `leaf` positions allow; the first ones are the longer ones, and runs
/// are empty where there are fewer leaves than ranks.
inline std::vector<KeyRange> even_ranges(std::int64_t n_keys, int p, std::int64_t leaf) {
  const std::int64_t n_leaves = (n_keys + leaf - 1) / leaf;
  std::vector<KeyRange> ranges;
  std::int64_t leaves_before = 0;
  for (int index = 0; index < p; ++index) {
    const std::int64_t n = n_leaves / p + (index < n_leaves % p ? 1 : 0);
    ranges.push_back({std::min(n_keys, leaves_before * leaf), std::min(n_keys, (leaves_before + n) * leaf)});
    leaves_before += n;
  }
  return ranges;
}

/// Ranges of the given lengths, one behind the other.
inline std::vector<KeyRange> ranges_of_lengths(std::span<const std::int64_t> lengths) {
  std::vector<KeyRange> ranges;
  std::int64_t begin = 0;
  for (const std::int64_t length : lengths) {
    ranges.push_back({begin, begin + length});
    begin += length;
  }
  return ranges;
}

}  // namespace tree_attn
