// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Checks that all ranks decode the same input (section 5): they compare hashes before the first step.
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

/// The rows of the cache that all ranks compare: a function of the shapes and lengths alone. At most 192 of the
/// rows in use, counted by entry, head and position, evenly spaced, the first and the last among them; empty if none is.
/// @param lengths keys in use per batch entry [b]
std::vector<CacheRow> sampled_rows(std::span<const std::int64_t> lengths, std::int64_t kv_heads);

/// Compares hashes of the input of all ranks: of the header of the file, of all of q and lengths, and of the sampled_rows()
/// of k, v and the mask. For synthetic input only q and lengths, because k and v follow from the same seed.
///
/// The comparison is of bytes, so NaN equals NaN with the same payload. It does not cover the other rows of k and v
/// (--verify compares the output with the oracle over the whole file of rank 0), nor the options of the command line, which
/// the program compares when it starts: for synthetic input this is a check of programs that were built differently. Every
/// rank reads the sampled rows of all shards, one page per row.
/// @param file the source of the workload; null for synthetic input
/// @throws InputError on every rank, naming rank 0, the first rank that differs from it, and what differs
void agree_on_input(const Ranks& ranks, Workload& workload, const SafetensorsFile* file);

}  // namespace tree_attn
