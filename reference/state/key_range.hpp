// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranges of positions, and the division of a sequence into ranges (section 5.3).
#pragma once

#include "reference/state/host_device.hpp"
#include "reference/state/require.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

namespace tree_attn {

/// A range of positions [begin, end), such as the keys held by one rank, block or warp.
struct KeyRange {
  std::int64_t begin = 0, end = 0;
  TREE_ATTN_HOST_DEVICE std::int64_t size() const { return end - begin; }
  TREE_ATTN_HOST_DEVICE bool empty() const { return begin >= end; }
  bool operator==(const KeyRange&) const = default;
};

/// The end of an open range: that of the shard to which keys are appended.
inline constexpr std::int64_t kOpenEnd = std::int64_t{1} << 62;

/// The part of a range that the states of a step cover. An open range ends at the first power of two that no sequence
/// exceeds, and is empty if none reaches it. So its subtrees, and the plans for them, change only when the longest sequence
/// doubles, on all ranks alike.
/// @param longest keys of the longest sequence
/// @throws std::out_of_range if they are more than kOpenEnd
inline KeyRange closed(KeyRange range, std::int64_t longest) {
  if (range.end != kOpenEnd) return range;
  require<std::out_of_range>(longest <= kOpenEnd, "closed: a sequence of ", longest, " keys; at most 2^62");
  if (longest <= range.begin) return {range.begin, range.begin};
  return {range.begin, static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(longest)))};
}
/// Closes every range.
inline std::vector<KeyRange> closed(std::span<const KeyRange> ranges, std::int64_t longest) {
  std::vector<KeyRange> result;
  for (const KeyRange& range : ranges) result.push_back(closed(range, longest));
  return result;
}

/// Throws std::invalid_argument unless neighbouring ranges touch, none is reversed, and none but the last is open.
/// @param function that has them as an argument @param ranges at least one
inline void require_neighbours(const char* function, std::span<const KeyRange> ranges) {
  require(!ranges.empty(), function, ": no ranges");
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const auto [begin, end] = ranges[i];
    require(begin >= 0 && begin <= end && end <= kOpenEnd, function, ": range ", i, " is [", begin, ", ", end,
            "), and positions ascend from 0 to 2^62");
    require(i == 0 || begin == ranges[i - 1].end, function, ": range ", i, " begins at ", begin, ", but range ", i - 1,
            " ends at ", i == 0 ? 0 : ranges[i - 1].end);
    require(end != kOpenEnd || i + 1 == ranges.size(), function, ": range ", i, " of ", ranges.size(),
            " is open, and only the last may be");
  }
}

/// Throws std::invalid_argument unless N positions can be cut into p ranges at multiples of `leaf`.
/// @param function that has them as arguments
inline void require_cut(const char* function, std::int64_t n_keys, int p, std::int64_t leaf) {
  require(n_keys >= 0 && n_keys <= kOpenEnd, function, ": ", n_keys, " keys; 0 to 2^62 can be cut");
  require(p >= 1, function, ": ", p, " ranges; at least 1 is needed");
  require(leaf >= 1 && leaf <= kOpenEnd, function, ": leaves of ", leaf, " keys; 1 to 2^62 are possible");
}

/// Cuts N positions at multiples of `leaf` into p ranges of nearly equal length. Earlier ranges are at most one leaf longer
/// than later ones. Some ranges are empty if there are fewer leaves than ranges.
/// @throws std::invalid_argument unless 0 <= n_keys <= 2^62, p >= 1 and 1 <= leaf <= 2^62
inline std::vector<KeyRange> even_ranges(std::int64_t n_keys, int p, std::int64_t leaf) {
  require_cut("even_ranges", n_keys, p, leaf);
  const std::int64_t n_leaves = n_keys / leaf + (n_keys % leaf > 0 ? 1 : 0);
  std::vector<KeyRange> ranges;
  std::int64_t leaves_before = 0;
  for (int index = 0; index < p; ++index) {
    const std::int64_t n = n_leaves / p + (index < n_leaves % p ? 1 : 0);
    ranges.push_back({std::min(n_keys, leaves_before * leaf), std::min(n_keys, (leaves_before + n) * leaf)});
    leaves_before += n;
  }
  return ranges;
}

/// The default cut between ranks: nearly equal ranges with few maximal subtrees, since a rank sends one state for each.
///
/// Cuts are multiples of the largest power of two at or below N / (8 p), and of `leaf`, a power of two, at least. A range is
/// then at most one eighth longer than N / p, or less than one leaf longer if N / p is below eight leaves; with leaves for
/// all ranks, none is empty.
/// @throws std::invalid_argument as even_ranges(), and if `leaf` is no power of two
inline std::vector<KeyRange> coarse_ranges(std::int64_t n_keys, int p, std::int64_t leaf) {
  require_cut("coarse_ranges", n_keys, p, leaf);
  require(std::has_single_bit(static_cast<std::uint64_t>(leaf)), "coarse_ranges: leaves of ", leaf,
          " keys; a power of two is needed");
  std::int64_t multiple = leaf;
  while (multiple <= n_keys / p / 16) multiple *= 2;
  return even_ranges(n_keys, p, multiple);
}

/// Consecutive ranges of the given lengths, starting at position 0.
/// @throws std::invalid_argument if a length is negative, or the last range ends beyond 2^62
inline std::vector<KeyRange> ranges_of_lengths(std::span<const std::int64_t> lengths) {
  std::vector<KeyRange> ranges;
  std::int64_t begin = 0;
  for (const std::int64_t length : lengths) {
    require(length >= 0 && length <= kOpenEnd - begin, "ranges_of_lengths: length ", length, " of range ", ranges.size(),
            ", which begins at ", begin, "; positions ascend from 0 to 2^62");
    ranges.push_back({begin, begin + length});
    begin += length;
  }
  return ranges;
}

}  // namespace tree_attn
