// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Lists what the ranks of a decode must have alike (section 5.3).
#pragma once

#include "distributed/exchange/open_shard.hpp"
#include "distributed/exchange/plan_options.hpp"
#include "distributed/transport/ranks.hpp"
#include "distributed/transport/topology.hpp"

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace tree_attn {

/// Lists what ranks compare of the options of their plans.
std::vector<Field> fields_of(const PlanOptions& options);

/// All that decides what the ranks of a decoder send to each other, and how they compute. Ranks that differ would merge
/// states of different keys, or wait for messages that no rank sends.
struct DecoderSetup {
  std::string_view algorithm;
  const AttentionShape& shape;
  std::span<const KeyRange> ranges;
  LeafOrder order;
  double scale;
  const KvScales& scales;
  PageRule pages;
  std::int64_t most_queries;
  const PlanOptions& options;
};

/// A number by which ranks compare the nodes of all ranks.
std::uint64_t hash_of_nodes(const Topology& topology);

/// Lists what ranks compare before they open a decoder.
std::vector<Field> fields_of(const DecoderSetup& setup);

}  // namespace tree_attn
