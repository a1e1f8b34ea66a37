// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Values that all ranks must have alike, compared before anything depends on them (section 5.3).
#pragma once

#include "distributed/transport/ranks.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace tree_attn {

/// A name, and a value that ranks compare and print. Numbers keep all their digits.
struct Field {
  std::string_view name;
  std::array<char, 48> value{};  ///< a text, followed by zeros
  std::string_view remedy{};     ///< an option with which no two ranks differ; empty: there is none

  Field(std::string_view of, std::string_view text, std::string_view option = {}) : name(of), remedy(option) {
    std::copy_n(text.begin(), std::min(text.size(), value.size()), value.begin());
  }
  template <class Number>
  requires std::is_arithmetic_v<Number> Field(std::string_view of, Number number) : name(of) {
    std::to_chars(value.data(), value.data() + value.size(), +number);
  }
};

/// Compares values over all ranks. Collective: one reduction of a hash, and all-gathers if ranks differ.
/// @param function that all ranks have called, and that begins the line
/// @param what the rank waits for, as Ranks::all_gather() @param refusal of this rank, see Ranks::all_equal()
/// @throws InputError, the same line on every rank: the refusal of a rank; or two ranks, and the functions that they have
///   called, or the values that they have different; TransportError
void require_equal(const Ranks& ranks, std::string_view function, std::string_view what, std::span<const Field> fields,
                   const std::optional<std::string>& refusal = {});

}  // namespace tree_attn
