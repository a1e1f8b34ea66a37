// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One more position for some entries of a batch, from a small array on the device to its rows of the cache.
///
/// A copy that the host queues goes to an address, and an address in a graph is the same in every replay. A kernel reads the
/// row from memory, so the graph of a step appends too.
#pragma once

#include "gpu/platform/launch.hpp"

#include <cstdint>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Source and destination of appended rows.
struct AppendedRows {
  const std::int64_t* rows = nullptr;                     ///< [b], row of the cache; negative: nothing is appended
  const unsigned char* data = nullptr;                    ///< [b] keys [n_kv][key_bytes], then values [n_kv][value_bytes]
  unsigned char *k = nullptr, *v = nullptr;               ///< [b][n_kv][n_allocated] rows, or those of a pool
  std::int64_t batch = 0, kv_heads = 0, n_allocated = 0;  ///< b, n_kv, rows of a key/value head
  std::int64_t entry_stride = 0;                          ///< rows from one entry to the next; 0 in a pool
  std::int64_t key_bytes = 0, value_bytes = 0;            ///< of a row
  std::int64_t key_pitch = 0, value_pitch = 0;            ///< bytes from a row of the cache to the next
};

/// Queues the kernel. @throws DeviceError
void append_rows(const AppendedRows& appended, Stream stream);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
