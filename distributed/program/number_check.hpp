// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Checks for options whose value is a number.
#pragma once

#include "reference/data/input_error.hpp"

#include <CLI/CLI.hpp>

#include <cmath>
#include <string>

namespace tree_attn {

/// Reads a number. NaN is none. @returns whether there is one
inline bool read_number(const std::string& text, double& number) {
  return CLI::detail::lexical_cast(text, number) && !std::isnan(number);
}

/// Whether the text is a finite number above 0: empty, or why not. CLI::PositiveNumber would accept NaN, and print the
/// largest double.
inline std::string is_positive(const std::string& text) {
  double number = 0;
  return read_number(text, number) && number > 0 && std::isfinite(number) ? ""
                                                                          : readable(text) + " is not a positive number";
}
/// The same, or inf.
inline std::string is_positive_or_inf(const std::string& text) {
  double number = 0;
  return read_number(text, number) && number > 0 ? "" : readable(text) + " is not a positive number";
}
/// Whether the text is a finite number of at least 0: empty, or why not.
inline std::string is_not_negative(const std::string& text) {
  double number = 0;
  return read_number(text, number) && number >= 0 && std::isfinite(number) ? "" : readable(text) + " is not a number >= 0";
}
/// Whether the text is an integer of at least 0, in digits alone: empty, or why not.
inline std::string is_whole(const std::string& text) {
  const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  return digits ? "" : readable(text) + " is not an integer >= 0";
}

}  // namespace tree_attn
