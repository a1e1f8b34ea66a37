// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 6.2: a forest that carries.
///
/// Hint: As a binary counter carries: while the last two have one level, and the left one an even index, they become
/// their parent.
#pragma once

#include <cstdint>
#include <vector>

/// A subtree: 2^level leaves, the index-th of its level from the left.
struct Subtree {
  int level;
  std::int64_t index;
};

/// Appends leaf number a. @returns the number of merges
inline int push(std::vector<Subtree>& forest, std::int64_t a) {
  forest.push_back({0, a});
  for (int n = 0;; ++n) {
    if (forest.size() < 2) return n;
    const Subtree left = forest[forest.size() - 2], right = forest.back();
    // Siblings have one level and neighbouring indices, the left one even.
    if (left.level != right.level || left.index % 2 != 0 || left.index + 1 != right.index) return n;
    forest.pop_back();
    forest.back() = {left.level + 1, left.index / 2};
  }
}
