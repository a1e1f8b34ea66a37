// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Chunks and memory of steps on the CPU, by shapes alone (section 5).
#pragma once

#include "reference/cpu/leaf_kernel.hpp"
#include "reference/state/owned_leaves.hpp"
#include "reference/tensor/shape.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace tree_attn {

/// Division of the work of steps of l queries, and the memory that they need. Counted in double, because the axes of an
/// empty tensor may have a product beyond 64 bits.
struct SessionPlan {
  /// Most keys of a chunk: enough that alternating between rows of k and rows of v costs nothing, few enough that threads
  /// end at the same time.
  static constexpr std::int64_t kChunkKeys = 4096;
  /// Most scores of a chunk, keys times queries, so that they stay in the second level of the cache.
  static constexpr std::int64_t kChunkScores = 16384;
  /// Keys of the smallest chunk that is made shorter for entries that may share it.
  static constexpr std::int64_t kSharedChunkKeys = 512;
  /// Chunks per thread, if there are enough leaves.
  static constexpr std::int64_t kChunksPerThread = 8;

  double n_rows, n_queries, chunk_leaves, n_subtrees, n_chunks, workspace, n_threads, packed, state;
  double n_dealt_heads = 0, n_dealt_leaves = 0;  ///< heads and leaves of DealtMerges
  double n_together;                             ///< most entries of an item: the batch in a cache in pages

  SessionPlan(const AttentionShape& shape, std::int64_t n_queries_of_step, const OwnedLeaves& leaves, std::int64_t capacity,
              int threads, bool shares)
      : n_threads(threads), n_together(shares ? static_cast<double>(shape.batch) : 1) {
    const double batch = static_cast<double>(shape.batch), heads = static_cast<double>(shape.heads),
                 kv_heads = static_cast<double>(shape.kv_heads), l = static_cast<double>(n_queries_of_step);
    const double n_keys = static_cast<double>(capacity);
    n_rows = batch * heads * l;
    n_queries = batch * kv_heads == 0 ? 0 : heads / kv_heads * l;
    packed = static_cast<double>(packed_size(shape.head_dim));
    state = static_cast<double>(state_size(shape.value_dim));

    // Chunks of 2^i leaves.
    std::int64_t chunk_keys = kChunkKeys;
    const auto halve_while = [&chunk_keys](const auto& too_large) {
      while (chunk_keys > kLeafKeys && too_large(static_cast<double>(chunk_keys))) chunk_keys /= 2;
    };
    halve_while([&](double n) { return n * n_queries > static_cast<double>(kChunkScores); });
    halve_while([&](double n) { return n > kSharedChunkKeys && n * n_queries * n_together > kChunkScores; });
    halve_while([&](double n) { return n * n_threads * kChunksPerThread > n_keys * batch * kv_heads; });
    chunk_leaves = static_cast<double>(chunk_keys / kLeafKeys);
    // Shorter ones at both ends of the range, at most one per level, and subtrees without keys where it is open.
    const double n_levels = std::bit_width(static_cast<std::uint64_t>(std::min(chunk_keys, capacity)));
    const double n_open = capacity < leaves.range().size() ? 2 * kPositionBits : 0;
    n_chunks = std::min(n_keys, std::floor(n_keys / static_cast<double>(chunk_keys)) + 2 * n_levels) + n_open;
    n_subtrees = std::min(n_keys, 2.0 * std::bit_width(static_cast<std::uint64_t>(capacity))) + n_open;
    if (leaves.order() == LeafOrder::kDealt) {
      n_chunks = 0;
      n_subtrees = static_cast<double>(leaves.subtrees().size());
      // One thread completes a head before it begins the next one, unless entries share leaves.
      n_dealt_heads = n_threads > 1 || n_together > 1 ? batch * kv_heads : std::min(1.0, batch * kv_heads);
      n_dealt_leaves = std::ceil(n_keys / static_cast<double>(kLeafKeys));
    }
    // Whole lines, so that the workspace of every thread begins at one.
    constexpr double kLineFloats = 16;
    workspace = static_cast<double>(block_floats(shape.head_dim)) +
                n_together * n_queries * static_cast<double>(query_floats(chunk_keys / kLeafKeys, shape.value_dim));
    workspace = std::ceil(workspace / kLineFloats) * kLineFloats;
  }
};

}  // namespace tree_attn
