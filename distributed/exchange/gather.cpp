// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One AllGather of the ranks' subtrees, and the canonical merge on every rank (section 5.3).
#include "distributed/exchange/decoder.hpp"
#include "distributed/exchange/plan_builder.hpp"

#include <algorithm>

namespace tree_attn {
namespace {

/// ceil(log2 p) rounds for any p (Bruck).
Plan gather_plan(const Topology& topology, int rank, std::span<const KeyRange> ranges, const PlanOptions&) {
  const std::vector<int>& order = topology.order();
  const std::size_t p = order.size(), me = static_cast<std::size_t>(topology.index_of(rank));
  PlanBuilder builder;
  builder.collective();

  // The forests of this rank, of the next one in the order, and so on, cyclically: in adjacent blocks, as they are
  // allocated.
  std::vector<BlockForest> cyclic{builder.own(ranges[me])};
  std::vector<Block> first{0, static_cast<Block>(cyclic[0].blocks.size())};

  // Round i: the 2^i forests held so far go 2^i ranks down, and as many come from 2^i ranks up, or as many as are missing.
  for (std::size_t held = 1; held < p; held *= 2) {
    const std::size_t n = std::min(held, p - held);
    builder.exchange();
    builder.send(order[(me + p - held) % p], Blocks{0, first[n]});
    for (std::size_t i = held; i < held + n; ++i) {
      cyclic.push_back(builder.allocate(ranges[(me + i) % p]));
      first.push_back(first.back() + static_cast<Block>(cyclic.back().blocks.size()));
    }
    builder.receive(order[(me + held) % p], Blocks{first[held], first[held + n] - first[held]});
  }

  std::rotate(cyclic.begin(), cyclic.begin() + static_cast<std::ptrdiff_t>((p - me) % p), cyclic.end());
  builder.finish(builder.root(builder.join(cyclic)));
  return builder.take();
}

}  // namespace

extern const Algorithm kGather;
constinit const Algorithm kGather{
    .name = "gather", .brief = "one AllGather, then a merge in canonical order", .exchange = &gather_plan};

}  // namespace tree_attn
