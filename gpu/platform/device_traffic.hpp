// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What the host asks of the device's memory, counted: a decode step allocates nothing and uploads what is new.
#pragma once

#include <atomic>
#include <cstdint>

namespace tree_attn {

/// Counts of one platform since the program started, over all threads.
struct DeviceTraffic {
  std::atomic<std::int64_t> n_allocations = 0;     ///< buffers that took memory
  std::atomic<std::int64_t> bytes_uploaded = 0;    ///< from the host to the device
  std::atomic<std::int64_t> bytes_downloaded = 0;  ///< from the device to the host
};

}  // namespace tree_attn
