// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Kernels that copy keys and values to where a walk would use them, and compute nothing: the rate that a way to copy
/// leaves to the walk above it.
#pragma once

#include "tree_attn/gpu/platform/launch.hpp"

#include <array>
#include <cstdint>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Ways to copy. Each thread group has a contiguous run of the keys and the same run of the values, and takes units of them
/// in turns; a thread group is a warp, or for tensor maps a block.
enum class CopyWay {
  Loads,       ///< 16 bytes per lane, eight loads in flight, to registers
  CpAsync,     ///< 16 bytes per lane, in a ring of shared memory per warp
  Bulk,        ///< 4 KiB started by one lane, in a ring per warp
  TensorMaps,  ///< two boxes of 64 rows x 64 elements started by one thread of the block, in a ring per block
};
constexpr const char* name_of(CopyWay way) {
  constexpr const char* kNames[] = {"loads", "cp.async", "bulk", "tensor map"};
  return kNames[static_cast<int>(way)];
}

/// Bytes that a warp copies at once: 16 rows of 128 elements of BF16. Rows and bytes that a tensor map copies at once.
inline constexpr int kCopyBytes = 4096, kCopyTileRows = 64, kCopyTileBytes = 64 * 256;

/// What is copied.
struct CopyStreams {
  const unsigned char *keys, *values;
  std::int64_t n_bytes;  ///< of each; a multiple of kCopyTileBytes
};

/// One way, in one shape.
struct CopyShape {
  CopyWay way;
  int kib_in_flight;  ///< per multiprocessor, with one block on each: 64, 96, 128, 160 or 192; for loads 64 or 128
  int n_blocks;
};

/// Whether the device has the way to copy, and room for a block with that many KiB in flight.
bool has_copies(CopyWay way, int kib_in_flight);

/// Copies everything once. Adds to *sum the first 32-bit word of every kCopyBytes of keys and of values: what all ways agree
/// on.
/// @throws DeviceError for a shape that is not listed above, or for which the device has no room
void launch_copies(const CopyShape& shape, const CopyStreams& streams, unsigned* sum, Stream stream);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
