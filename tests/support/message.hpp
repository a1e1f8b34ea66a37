// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The message of an error that a call ends with.
#pragma once

#include <exception>
#include <string>

namespace tree_attn::test {

std::string message(const auto& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace tree_attn::test
