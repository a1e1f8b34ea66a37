// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Names of the algorithms of the library as the program takes them, so that tests of the program include a new one.
#pragma once

#include "distributed/exchange/decoder.hpp"

#include <string>
#include <vector>

namespace tree_attn::test {

/// Predicates that choose the algorithms of a test.
inline bool any(const Algorithm&) { return true; }
inline bool keeps_bits(const Algorithm& algorithm) { return algorithm.keeps_bits; }
inline bool keeps_no_bits(const Algorithm& algorithm) { return !algorithm.keeps_bits; }

/// In the order of algorithms().
inline std::vector<std::string> names(bool (*is_wanted)(const Algorithm&) = any) {
  std::vector<std::string> all;
  for (const Algorithm& algorithm : algorithms()) {
    if (is_wanted(algorithm)) all.emplace_back(algorithm.name);
  }
  return all;
}

/// As --compare takes them beside the first, which is the default of --algorithm.
inline std::string others(bool (*is_wanted)(const Algorithm&) = any) {
  std::string list;
  for (const std::string& name : names(is_wanted)) {
    if (name != algorithms()[0].name) list += (list.empty() ? "" : ",") + name;
  }
  return list;
}

}  // namespace tree_attn::test
