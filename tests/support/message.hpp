// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Message of a call that fails.
#pragma once

#include <doctest/doctest.h>

#include <exception>
#include <stdexcept>
#include <string>

/// Checks that an expression is refused, in a line that has these words.
#define CHECK_INVALID(expression, words) CHECK_THROWS_WITH_AS(expression, doctest::Contains(words), std::invalid_argument)
#define CHECK_OUT_OF_RANGE(expression, words) CHECK_THROWS_WITH_AS(expression, doctest::Contains(words), std::out_of_range)

namespace tree_attn::test {

/// The text of the error of this kind that a call ends with; empty if it ends well.
template <class Error = std::exception, class Body>
std::string message(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace tree_attn::test
