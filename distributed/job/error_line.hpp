// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The line for an error of one rank, and lists of ranks in such lines.
#pragma once

#include "tree_attn/reference/data/input_error.hpp"

#include <exception>
#include <new>
#include <span>
#include <string>

namespace tree_attn {

/// What an error says, in one line that starts with the name of its rank.
/// @param name "rank 1"; empty for none. A text that names a rank itself is not changed.
inline std::string error_line(const std::exception& error, const std::string& name) {
  const bool is_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  const std::string text = is_memory ? "not enough memory" : readable(error.what(), 900);
  return name.empty() || text.starts_with("rank ") ? text : name + ": " + text;
}

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
