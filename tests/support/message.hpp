// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What a call says as it fails.
#pragma once

#include <exception>
#include <string>

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
