// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 6.1: the subtrees of a range.
///
/// Hint: Go from left to right: from `begin` on, double the length while `begin` is a multiple of the doubled length and
/// the end is not passed.
#pragma once

#include <cstdint>
#include <vector>

struct Range {
  std::int64_t begin, end;
};

/// The maximal subtrees of [begin, end): at every place the longest that is aligned there and still fits.
inline std::vector<Range> cover(std::int64_t begin, std::int64_t end) {
  std::vector<Range> subtrees;
  while (begin < end) {
    std::int64_t length = 1;
    while (begin % (2 * length) == 0 && begin + 2 * length <= end) length *= 2;
    subtrees.push_back({begin, begin + length});
    begin += length;
  }
  return subtrees;
}
