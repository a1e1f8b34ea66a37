// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The kernel: one thread block per key/value head of a batch entry.
#include "gpu/backend/append_rows.hpp"

#include "gpu/platform/device.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

constexpr unsigned kThreads = 64;

/// Copies a row, four bytes per thread and turn where both are aligned, else one, which the emulator does not watch.
__device__ void copy_row(unsigned char* to, const unsigned char* from, std::int64_t n_bytes) {
  const bool by_fours = ((reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from) |
                          static_cast<std::uintptr_t>(n_bytes)) &
                         3) == 0;
  const std::int64_t width = by_fours ? 4 : 1;
  for (std::int64_t i = threadIdx.x * width; i < n_bytes; i += blockDim.x * width) {
    if (by_fours) {
      store_fresh(reinterpret_cast<std::uint32_t*>(to + i), load_once(reinterpret_cast<const std::uint32_t*>(from + i)));
    } else {
      to[i] = from[i];
    }
  }
}

/// Copies the appended row of each batch entry into the cache.
/// - Grid: batch * kv_heads, a head of an entry each.
/// - Block: kThreads threads, four bytes or one each.
/// - Reads: rows [batch] and data, the keys and values of every entry.
/// - Writes: row rows[entry] of k and of v; nothing where it is negative.
__global__ void copy_appended(AppendedRows appended) {
  // The decode after it may begin, and read older leaves; it waits before it reads the leaves that are written here, see
  // begin_early().
  launch_dependents();
  const std::int64_t entry = blockIdx.x / appended.kv_heads, head = blockIdx.x % appended.kv_heads;
  const std::int64_t row = load_once(appended.rows + entry);
  if (row < 0) return;
  const unsigned char* const keys = appended.data + entry * appended.kv_heads * (appended.key_bytes + appended.value_bytes);
  const unsigned char* const values = keys + appended.kv_heads * appended.key_bytes;
  const std::int64_t at = entry * appended.entry_stride + head * appended.n_allocated + row;
  copy_row(appended.k + at * appended.key_pitch, keys + head * appended.key_bytes, appended.key_bytes);
  copy_row(appended.v + at * appended.value_pitch, values + head * appended.value_bytes, appended.value_bytes);
}

}  // namespace

void append_rows(const AppendedRows& appended, Stream stream) {
  const std::int64_t n_blocks = appended.batch * appended.kv_heads;
  if (n_blocks == 0) return;
  launch(copy_appended, {.grid = {static_cast<unsigned>(n_blocks)}, .block = {kThreads}}, stream, appended);
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
