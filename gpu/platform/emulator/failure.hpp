// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How the emulator says that a kernel broke a rule: which, on which line, which block and thread.
#pragma once

#include "tree_attn/gpu/platform/emulator/coordinates.hpp"

#include <string>

namespace tree_attn::emulated::runtime {

/// "file:line"
std::string to_string(const Line& line);
/// "block (x, y, z), thread (x, y, z)"
std::string to_string(const Coordinates& coordinates);

/// @throws DeviceError with the line, the text and the place of the running thread
[[noreturn]] void fail(const Line& line, const std::string& text);

}  // namespace tree_attn::emulated::runtime
