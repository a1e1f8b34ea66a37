// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The running thread and its block: read for threadIdx, blockIdx, blockDim and gridDim, and named in reports of a
/// broken rule.
#pragma once

#include <source_location>
#include <string>

namespace tree_attn::emulated {

/// A line of a kernel.
using Line = std::source_location;

/// Extents or an index in three dimensions.
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

namespace runtime {

/// Coordinates of a thread in its block and grid.
struct Coordinates {
  dim3 thread, block, block_extent, grid_extent;
};

/// Coordinates of the running thread. Every host thread runs one fiber at a time, and a fiber never changes its host thread.
extern constinit thread_local const Coordinates* running_coordinates;

/// "file:line"
std::string to_string(const Line& line);
/// "block (x, y, z), thread (x, y, z)"
std::string to_string(const Coordinates& coordinates);
/// @throws DeviceError with the line, the text and the coordinates of the running thread
[[noreturn]] void fail(const Line& line, const std::string& text);

}  // namespace runtime
}  // namespace tree_attn::emulated
