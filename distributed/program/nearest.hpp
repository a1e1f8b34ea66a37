// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The name that a misspelt one is nearest to.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tree_attn {

/// Letters to add, remove or replace until `a` is `b`: the Levenshtein distance.
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  // edits[j] is the distance between the letters of a so far and the first j of b.
  std::vector<std::size_t> edits(b.size() + 1);
  std::iota(edits.begin(), edits.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(edits[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = std::exchange(edits[j + 1], std::min({replaced, edits[j] + 1, edits[j + 1] + 1}));
    }
  }
  return edits[b.size()];
}

/// The first of the names that are nearest to a word; empty if none is within a third of the letters of the word.
inline std::string nearest(std::string_view word, const std::vector<std::string>& names) {
  const auto distance = [&](const std::string& name) { return edit_distance(word, name); };
  const auto found = std::ranges::min_element(names, {}, distance);
  return found != names.end() && distance(*found) <= word.size() / 3 ? *found : "";
}

}  // namespace tree_attn
