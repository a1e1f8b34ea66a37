// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Check of every fuzzer: a refusal is one readable line.
#pragma once

#include "reference/data/input_error.hpp"

#include <cstdio>
#include <cstdlib>
#include <string_view>

/// Ends the fuzzer, with the place, unless the condition holds. An assertion that no build leaves out.
#define FUZZ_CHECK(condition)                                                      \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (false)

/// A refusal names the file and is UTF-8 without control characters, of a length that a terminal can show.
inline void check_refusal(std::string_view path, std::string_view message) {
  FUZZ_CHECK(message.starts_with(path));
  FUZZ_CHECK(message.size() < 1000);
  FUZZ_CHECK(tree_attn::readable(message, 1000) == message);
}
