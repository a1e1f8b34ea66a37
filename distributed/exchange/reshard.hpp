// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A cache that moves to other ranks: messages of whole leaves between two ways of owning them (section 5.3).
///
/// Only keys and values whose owner changes are sent, each once, so no plan sends fewer bytes. The tree stays where it is:
/// an algorithm that keeps its bits has the same ones afterwards.
#pragma once

#include "distributed/transport/transport.hpp"
#include "reference/decode/kv_cache.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace tree_attn {

/// Adjacent rows of the cache of one rank that become adjacent rows of that of another one, or of the same.
struct RowMove {
  int from = 0, to = 0;  ///< indices in the order of the topology
  std::int64_t row_from = 0, row_to = 0, n = 0;
};

/// The leaves of every rank, for ranges in the order of the topology.
std::vector<OwnedLeaves> owned_leaves(std::span<const KeyRange> ranges, LeafOrder order);

/// Extends ranges to more ranks: those that are added hold nothing. They come before the last one, whose range may be open.
/// @throws std::invalid_argument if there is no range, or more than n_ranks
std::vector<KeyRange> spread_over(std::span<const KeyRange> ranges, int n_ranks);

/// Moves of the first n_keys keys of a sequence, by ascending position.
/// @param before, after leaves of all ranks, which hold every position once, in any order of leaves
/// @throws std::invalid_argument for different numbers of ranks; std::out_of_range for a key that no rank holds
std::vector<RowMove> moves_between(std::span<const OwnedLeaves> before, std::span<const OwnedLeaves> after,
                                   std::int64_t n_keys);

/// Moves the keys and values of all ranks. Collective. The memory of both caches, and of the messages, is in use meanwhile.
/// @param transport in host memory @param from stays as it is; it has given back no page
/// @param[out] to an empty cache, of the same axes, types and scales
/// @param before, after leaves of all ranks; those of this rank are those of `from` and `to`
/// @param lengths of the sequences [b], over all ranks
/// @throws InputError on every rank if two ranks differ in these, or the caches of one are no such caches; alone, and for a
///   transport of device memory, std::invalid_argument; TransportError
void reshard(Transport& transport, const KvCache& from, KvCache& to, std::span<const OwnedLeaves> before,
             std::span<const OwnedLeaves> after, std::span<const std::int64_t> lengths);

}  // namespace tree_attn
