// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Sums over a plan.
#include "distributed/exchange/plan.hpp"

namespace tree_attn {

std::vector<std::int64_t> Plan::offsets(std::int64_t n_rows, std::int64_t d_v) const {
  std::vector<std::int64_t> offsets{0};
  offsets.reserve(widths.size() + 1);
  for (const BlockWidth& width : widths) offsets.push_back(offsets.back() + width.elements(n_rows, d_v));
  return offsets;
}

std::int64_t Plan::offset_of_own(Block block, std::int64_t n_rows, std::int64_t d_v) const {
  const std::int64_t row = widths[static_cast<std::size_t>(block)].rows.begin(n_rows),
                     subtree = block / n_adjacent % n_subtrees();
  return (subtree * n_rows + row) * kStateBlock.elements(1, d_v);
}

RankCost cost_of(const Plan& plan, std::int64_t n_rows, std::int64_t d_v) {
  const std::vector<std::int64_t> offsets = plan.offsets(n_rows, d_v);
  RankCost cost;
  cost.collectives = plan.n_collectives;
  cost.elements = offsets.back();
  cost.rounds.emplace_back();
  const auto messages_of = [&](const std::vector<BlockMessage>& list) {
    std::vector<RankCost::Message> messages;
    for (const auto& [peer, blocks] : list) {
      const auto first = static_cast<std::size_t>(blocks.first), end = first + static_cast<std::size_t>(blocks.n);
      const auto bytes = static_cast<std::int64_t>(sizeof(float)) * (offsets[end] - offsets[first]);
      if (bytes > 0) messages.push_back({peer, bytes});
    }
    return messages;
  };
  const auto add_merges = [&](std::size_t n) {
    cost.merge_steps += static_cast<std::int64_t>(n);
    cost.rounds.back().merge_steps += static_cast<std::int64_t>(n);
  };
  for (const Operation& operation : plan.operations) {
    if (const auto* exchange = std::get_if<Exchange>(&operation)) {
      cost.rounds.push_back({.sends = messages_of(exchange->sends), .receives = messages_of(exchange->receives)});
    } else if (const auto* combine = std::get_if<Combine>(&operation)) {
      add_merges(combine->pairs.size());
    } else if (const auto* finish = std::get_if<Finish>(&operation)) {
      add_merges(finish->right ? 1 : 0);
    }
  }
  return cost;
}

}  // namespace tree_attn
