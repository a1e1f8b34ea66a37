// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What the ranks of a decode must have opened alike (section 5.3).
#pragma once

#include "tree_attn/distributed/decoders/open_shard.hpp"
#include "tree_attn/distributed/plan/plan_options.hpp"
#include "tree_attn/distributed/transport/transport.hpp"

#include <span>
#include <string_view>

namespace tree_attn {

/// Compares what Algorithm::open() is called with over all ranks. Ranks that differ would merge states of different keys, or
/// wait for messages that no rank sends. Collective: one reduction of a hash, and an all-gather if ranks differ.
/// @throws InputError, the same line on every rank, with two ranks and what they have different; TransportError
void require_agreement(std::string_view algorithm, Transport& transport, const OpenShard& shard,
                       std::span<const KeyRange> ranges, const PlanOptions& options);

}  // namespace tree_attn
