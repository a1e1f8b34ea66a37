// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Which thread of which block is running: what the emulator reads for threadIdx, blockIdx, blockDim and gridDim.
#pragma once

#include <source_location>

namespace tree_attn::emulated {

/// A line of a kernel.
using Line = std::source_location;

/// Extents or an index in three dimensions.
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

namespace runtime {

/// Where a thread is.
struct Coordinates {
  dim3 thread, block, block_extent, grid_extent;
};

/// The place of the running thread. Every host thread runs one fiber at a time, and a fiber never changes its host thread.
extern constinit thread_local const Coordinates* running_coordinates;

}  // namespace runtime
}  // namespace tree_attn::emulated
