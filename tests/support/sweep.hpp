// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How much of a sweep is run: all of it, or the part of it that belongs to the fast set.
#pragma once

#include <cstdlib>

namespace tree_attn::test {

/// Whether sweeps take all of their cases: ./run test --all.
inline bool takes_all_cases() {
  static const bool all = std::getenv("TREE_ATTN_ALL_TESTS") != nullptr;
  return all;
}

}  // namespace tree_attn::test
