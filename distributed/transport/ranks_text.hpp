// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Lists of ranks in lines.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace tree_attn {

/// "0", "0, 1", "0-3, 5"; after six parts "and 5 more". @param numbers ascending
inline std::string numbers_text(std::span<const int> numbers) {
  std::string text;
  for (std::size_t i = 0, part = 0, end = 0; i < numbers.size(); i = end, ++part) {
    if (part == 6) return text + " and " + std::to_string(numbers.size() - i) + " more";
    for (end = i + 1; end < numbers.size() && numbers[end] == numbers[end - 1] + 1;) ++end;
    if (end - i == 2) end = i + 1;
    text.append(i == 0 ? "" : ", ").append(std::to_string(numbers[i]));
    if (end - i > 1) text.append("-").append(std::to_string(numbers[end - 1]));
  }
  return text;
}

/// "rank 3", "ranks 0-2, 5"
inline std::string ranks_text(std::span<const int> ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + numbers_text(ranks);
}

}  // namespace tree_attn
