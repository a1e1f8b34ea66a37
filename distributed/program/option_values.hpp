// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Options whose value is a number, or a list: "64,0,64".
#pragma once

#include "reference/data/input_error.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace tree_attn {

/// Returns a check of an option whose value is a number: "" or why it is refused. NaN is refused, which the checks of CLI11
/// accept, and so is an empty text, which the parser would take for an option that was not given.
/// @param what a valid value is, "a positive number": others are refused as not being that
/// @param accepts whether a number is valid
template <class Accepts>
auto number_check(const std::string& what, Accepts accepts) {
  return [what, accepts](const std::string& text) {
    double number = 0;
    const bool is_one = CLI::detail::lexical_cast(text, number) && !std::isnan(number) && accepts(number);
    return is_one ? "" : readable(text) + " is not " + what;
  };
}
inline const auto is_positive_or_inf = number_check("a positive number", [](double x) { return x > 0; });
inline const auto is_not_negative = number_check("a number >= 0", [](double x) { return x >= 0 && std::isfinite(x); });
inline const auto is_finite = number_check("a finite number", [](double x) { return std::isfinite(x); });

/// A check of integers from `least` to `most` in decimal digits, in words that are the same with every version of CLI11. The
/// parser would read 010 as 8, and take the largest integer for any beyond. The help does not show these limits: they are
/// far from practical values.
template <class Integer = std::int64_t>
CLI::Validator within(std::type_identity_t<Integer> least, std::type_identity_t<Integer> most) {
  const auto check = [least, most](const std::string& text) -> std::string {
    Integer number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool is_integer = error != std::errc::invalid_argument && end == text.data() + text.size();
    if (!is_integer)
      return readable(text) + (std::is_unsigned_v<Integer> ? " is not an integer >= 0" : " is not an integer");
    const std::size_t first = text.find_first_not_of('-');
    if (text[first] == '0' && text.size() > first + 1) return readable(text) + " has a leading zero";
    const bool is_within = error == std::errc() && number >= least && number <= most;
    return is_within ? "" : line_of("Value ", readable(text), " not in range ", least, " to ", most);
  };
  return CLI::Validator(check, "");
}
/// Accepts all integers of a type.
template <class Integer>
CLI::Validator any_integer() {
  return within<Integer>(std::numeric_limits<Integer>::min(), std::numeric_limits<Integer>::max());
}

/// Accepts one of these names, which the help of the option lists.
inline CLI::Validator one_of(std::vector<std::string> names) { return CLI::IsMember(std::move(names)).description(""); }

/// Returns a function that adds an option to a command: its name, variable, help and check. The variables must live until
/// the command line is parsed.
/// @param group heading in the help; "": none
inline auto adder(CLI::App& command, const std::string& group = "") {
  return [&command, group](const std::string& name, auto& variable, const std::string& help, const auto& check) {
    CLI::Option* option = command.add_option(name, variable, help)->check(check);
    return group.empty() ? option : option->group(group);
  };
}

/// The items of "a,b,c", one more than commas. Empty items are kept: "" has one, "a,,b" three.
inline std::vector<std::string> items_of(const std::string& list) {
  std::vector<std::string> items;
  for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = list.find(',', begin);
    items.push_back(list.substr(begin, end == std::string::npos ? end : end - begin));
  }
  return items;
}

/// Adds an option whose value is a list in one argument, so that IN and OUT may follow it. The parser would drop empty items
/// of a list that it splits; here they are refused, as is the option if it is given twice.
/// @param items set when the command line is parsed; must live until then
/// @param check of an item, never empty: "" or why it is refused
template <class T, class Check>
CLI::Option* add_list_option(CLI::App& command, const std::string& name, std::vector<T>& items, const std::string& what,
                             const Check& check) {
  const auto assign = [&items, check, name](const std::string& list) {
    const std::vector<std::string> all = items_of(list);
    items.clear();
    for (const std::string& item : all) {
      const std::string why =
          item.empty() ? line_of("\"", readable(list), "\": item ", items.size() + 1, " of ", all.size(), " is empty")
                       : check(item);
      if (!why.empty()) throw CLI::ValidationError(name, why);
      CLI::detail::lexical_cast(item, items.emplace_back());
    }
  };
  return command.add_option_function<std::string>(name, assign, what)
      ->type_name(CLI::detail::type_name<T>() + std::string(",..."));
}

}  // namespace tree_attn
