// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The line for an error of one rank.
#pragma once

#include "reference/data/input_error.hpp"

#include <exception>
#include <new>
#include <string>

namespace tree_attn {

/// Text of an error in one line, which starts with the name of its rank.
/// @param name "rank 1"; empty for none. A text that names a rank itself is not changed.
inline std::string error_line(const std::exception& error, const std::string& name) {
  const bool is_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  const std::string text = is_memory ? "not enough memory" : readable(error.what(), 900);
  return name.empty() || text.starts_with("rank ") ? text : name + ": " + text;
}

}  // namespace tree_attn
