// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Counts of the host's calls on a device: a decode step allocates nothing and uploads only new data.
#pragma once

#include <atomic>
#include <cstdint>

namespace tree_attn {

/// Counts of one platform since the program started, over all threads. What a graph copies counts in every replay.
struct DeviceTraffic {
  std::atomic<std::int64_t> n_allocations = 0;     ///< buffers that took memory
  std::atomic<std::int64_t> n_uploads = 0;         ///< copies from the host to the device
  std::atomic<std::int64_t> bytes_uploaded = 0;    ///< by them
  std::atomic<std::int64_t> bytes_downloaded = 0;  ///< from the device to the host
  std::atomic<std::int64_t> bytes_to_peers = 0;    ///< stored by kernels into windows of other devices; emulator only
  std::atomic<std::int64_t> bytes_bulk = 0;        ///< that bulk copies of kernels read; emulator only
  std::atomic<std::int64_t> n_launches = 0;        ///< kernels that the host has launched, one by one
  std::atomic<std::int64_t> n_replays = 0;         ///< graphs that it has launched; their kernels are not counted again
};

/// Direction of a copy between host and device memory.
enum class CopyKind { Upload, Download, OnDevice };

/// Kernels and graphs that this host thread has launched, a graph once and not its kernels.
inline thread_local std::int64_t n_launches_of_thread = 0;

}  // namespace tree_attn
