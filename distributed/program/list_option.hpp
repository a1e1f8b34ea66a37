// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Options whose value is a list: "64,0,64".
#pragma once

#include "tree_attn/reference/data/input_error.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace tree_attn {

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
  const auto refusal = [check](const std::string& list) {
    const std::vector<std::string> all = items_of(list);
    if (const auto empty = std::ranges::find(all, ""); empty != all.end())
      return "\"" + readable(list) + "\": item " + std::to_string(empty - all.begin() + 1) + " of " +
             std::to_string(all.size()) + " is empty";
    for (const std::string& item : all) {
      if (const std::string why = check(item); !why.empty()) return why;
    }
    return std::string();
  };
  const auto assign = [&items](const std::string& list) {
    items.clear();
    for (const std::string& item : items_of(list)) CLI::detail::lexical_cast(item, items.emplace_back());
  };
  return command.add_option_function<std::string>(name, assign, what)
      ->type_name(CLI::detail::type_name<T>() + std::string(",..."))
      ->check(refusal);
}

}  // namespace tree_attn
