// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Whether all ranks decode the same input (section 5): hashes that they compare before the first step.
#pragma once

#include "distributed/transport/ranks.hpp"
#include "reference/data/workload.hpp"

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

namespace tree_attn {

/// A row of k and of v: [entry, head, position, :].
struct CacheRow {
  std::int64_t entry, head, position;
  auto operator<=>(const CacheRow&) const = default;
};

/// The rows of the cache that all ranks compare, a function of the shapes and lengths alone.
///
/// Shards, batch entries and heads make p b n_kv blocks of the cache. Of up to 64 blocks, evenly spread from the first to
/// the last, these are max(3, 192 / blocks) rows, evenly spread from the first to the last one in use. So with up to 64
/// ranks each shard contributes its first and last row of at least one head of one entry. 192 rows at most; rows past the
/// lengths never; empty where no key is in use.
/// @param ranges positions of every shard
/// @param lengths keys in use per batch entry [b]
std::vector<CacheRow> sampled_rows(std::span<const KeyRange> ranges, std::span<const std::int64_t> lengths,
                                   std::int64_t kv_heads);

/// Compares every rank's input with that of rank 0: the header of the file, q and lengths in full, k and v in their
/// sampled_rows(). Of made-up input q and lengths: k and v come from the same seed.
///
/// Bytes are compared, not values, so NaN equals NaN with the same payload. Not covered: rows of k and v outside the sample
/// (--verify holds the output against the oracle over rank 0's whole file), and the options of the command line.
/// Every rank reads the sampled rows of all shards, a page each.
/// @param file what the problem was read from; null for made-up input
/// @param ranges positions of every shard, the same on all ranks that have the same header
/// @throws InputError on every rank, naming the first rank that differs and the first thing in which it does
void agree_on_input(const Ranks& ranks, Workload& workload, const SafetensorsFile* file, std::span<const KeyRange> ranges);

}  // namespace tree_attn
