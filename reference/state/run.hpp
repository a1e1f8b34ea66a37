// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Runs of positions, and how a sequence is cut into them (section 5.3).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "reference/state/host_device.hpp"

namespace tree_attn {

/// A run of positions [begin, end): what one rank holds, or one block, or one warp.
struct Run {
  std::int64_t begin = 0, end = 0;
  TREE_ATTN_HOST_DEVICE std::int64_t size() const { return end - begin; }
  TREE_ATTN_HOST_DEVICE bool empty() const { return begin >= end; }
};

/// Cuts N positions into p runs as even as leaves of `leaf` positions allow; the first ones are the longer ones, and runs
/// are empty where there are fewer leaves than ranks.
inline std::vector<Run> even_runs(std::int64_t n_keys, int p, std::int64_t leaf) {
  const std::int64_t n_leaves = (n_keys + leaf - 1) / leaf;
  std::vector<Run> runs;
  std::int64_t leaves_before = 0;
  for (int place = 0; place < p; ++place) {
    const std::int64_t n = n_leaves / p + (place < n_leaves % p ? 1 : 0);
    runs.push_back({std::min(n_keys, leaves_before * leaf), std::min(n_keys, (leaves_before + n) * leaf)});
    leaves_before += n;
  }
  return runs;
}

/// Runs of the given lengths, one behind the other.
inline std::vector<Run> runs_of_lengths(std::span<const std::int64_t> lengths) {
  std::vector<Run> runs;
  std::int64_t begin = 0;
  for (const std::int64_t length : lengths) {
    runs.push_back({begin, begin + length});
    begin += length;
  }
  return runs;
}

}  // namespace tree_attn
