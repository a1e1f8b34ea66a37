// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Extent of a sweep: all of it, or the part of it that belongs to the fast set.
#pragma once

#include <cstdlib>

namespace tree_attn::test {

/// Tests whether sweeps take all of their cases: ./run test --all, and on a GPU.
inline bool takes_all_cases() {
#if defined(TREE_ATTN_FOR_CUDA)
  return true;
#else
  static const bool all = std::getenv("TREE_ATTN_ALL_TESTS") != nullptr;
  return all;
#endif
}

}  // namespace tree_attn::test
