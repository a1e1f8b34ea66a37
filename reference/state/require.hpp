// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Checks of arguments, in every build: one line with the function, the argument and the values.
#pragma once

#include <cstdio>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace tree_attn {

/// One line of texts and numbers.
template <class... Parts>
std::string line_of(const Parts&... parts) {
  const auto text = [](const auto& part) -> std::string {
    using Part = std::decay_t<decltype(part)>;
    if constexpr (std::is_floating_point_v<Part>) {
      char number[32];
      std::snprintf(number, sizeof number, "%g", static_cast<double>(part));
      return number;
    } else if constexpr (std::is_arithmetic_v<Part>) {
      return std::to_string(part);
    } else {
      return std::string(part);
    }
  };
  return (text(parts) + ...);
}

/// Throws an Error with that line unless the condition holds. Without an error it costs the condition.
/// @param parts "even_ranges: ", p, " ranks"
template <class Error = std::invalid_argument, class... Parts>
constexpr void require(bool condition, const Parts&... parts) {
  if (!condition) throw Error(line_of(parts...));
}

}  // namespace tree_attn
