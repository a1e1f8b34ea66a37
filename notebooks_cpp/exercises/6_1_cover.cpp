// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 6.1: the subtrees of a range.
///
/// Expected: The maximal aligned subtrees [begin, end) of lengths 2^i that cover a range, from left to right; a subtree of
/// length 2^i begins at a multiple of 2^i.
///
/// Run: ./run exercise 6.1
#include "notebooks_cpp/exercises/check.hpp"

#include <cstdint>
#include <string>
#include <vector>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/6_1_cover.hpp"
#else

// Change from here ...
struct Range {
  std::int64_t begin, end;
};

/// The maximal subtrees of [begin, end).
inline std::vector<Range> cover(std::int64_t begin, std::int64_t end) {
  std::vector<Range> subtrees;
  for (; begin < end; ++begin) subtrees.push_back({begin, begin + 1});  // Aligned, but single keys.
  return subtrees;
}
// ... to here.

#endif

int main() {
  const auto n = [](std::int64_t begin, std::int64_t end) { return cover(begin, end).size(); };
  expect_equal(n(0, 1024), 1, "subtrees of [0, 1024)");
  expect_equal(n(0, 1023), 10, "subtrees of [0, 1023)");
  expect_equal(n(1, 1023), 18, "subtrees of [1, 1023)");
  expect_equal(n(5, 5), 0, "subtrees of an empty range");
  for (std::int64_t begin = 0; begin < 70; ++begin) {
    for (std::int64_t end = begin + 1; end < 140; ++end) {
      std::int64_t at = begin, before = 0;
      bool sound = true;
      for (const Range& each : cover(begin, end)) {
        const std::int64_t length = each.end - each.begin;
        sound = sound && each.begin == at && length > 0 && (length & (length - 1)) == 0 && each.begin % length == 0;
        // Two siblings would be one subtree.
        sound = sound && !(before == length && (each.begin - length) % (2 * length) == 0);
        at = each.end, before = length;
      }
      expect(sound && at == end,
             "[" + std::to_string(begin) + ", " + std::to_string(end) +
                 ") is covered by maximal subtrees, in order: the end of the last",
             at);
    }
  }
  return result();
}
