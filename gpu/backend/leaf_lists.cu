// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The leaves of a sequence by ascending slot.
#include "tree_attn/gpu/backend/leaf_lists.hpp"

#include <algorithm>
#include <bit>
#include <limits>

namespace tree_attn::TREE_ATTN_PLATFORM {

ListedTree::ListedTree(const OwnedLeaves& leaves, std::int64_t n_leaves)
    : n_top_(std::clamp<int>(std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(n_leaves, 1) - 1)),
                             leaves.period_bits(), kDealtBits)),
      n_low_(n_leaves > 0 ? std::bit_width(static_cast<std::uint64_t>((n_leaves - 1) >> kDealtBits)) : 0) {}

std::int64_t LeafLists::tree_positions(const OwnedLeaves& leaves, std::int64_t n_leaves) {
  // The longest sequence with so many leaves of the range ends before the next one. A range without slots has no leaf.
  const ListedTree tree(leaves, leaves.range().empty() ? 0 : leaves.leaf(n_leaves));
  const std::int64_t begin = tree.bound(leaves.range().begin), end = tree.bound(leaves.range().end);
  if (end / kLeafKeys > std::numeric_limits<std::int32_t>::max())
    throw DeviceError(std::to_string(n_leaves) + " leaves of the dealt order, whose slots have no room in 32 bits");
  return end - begin;
}

LeafLists::LeafLists(std::int64_t batch, std::int64_t n_leaves)
    : most_leaves_(n_leaves), on_device_(batch * (n_leaves + 1), MemoryUse::Input) {
  leaf_.reserve(static_cast<std::size_t>(n_leaves + 1));
}

void LeafLists::update(const OwnedLeaves& leaves, std::span<const std::int64_t> lengths, LeafList* lists) {
  const bool is_other_range = range_.begin != leaves.range().begin || range_.end != leaves.range().end;
  range_ = leaves.range();
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const std::int64_t n = (lengths[i] + kLeafKeys - 1) / kLeafKeys, n_rows = leaves.n_keys(lengths[i]);
    const ListedTree tree(leaves, n);
    LeafList next = lists[i];
    next.begin = tree.bound(leaves.range().begin), next.end = tree.bound(leaves.range().end);
    next.n_leaves = static_cast<std::int32_t>((n_rows + kLeafKeys - 1) / kLeafKeys);
    next.n_last = static_cast<std::int32_t>(n_rows - std::max(0, next.n_leaves - 1) * kLeafKeys);
    if (is_other_range || next.begin != lists[i].begin || next.end != lists[i].end || next.n_leaves != lists[i].n_leaves) {
      leaf_.clear();
      leaves.for_each_by_slot(n, [&](std::int64_t slot, std::int64_t place) {
        if (place == next.n_leaves - 1) next.last = static_cast<std::int32_t>(leaf_.size());
        leaf_.push_back({static_cast<std::int32_t>(tree.slot(slot)), static_cast<std::int32_t>(place)});
      });
      leaf_.push_back({static_cast<std::int32_t>(next.end / kLeafKeys), 0});
      on_device_.upload(leaf_, static_cast<std::int64_t>(i) * (most_leaves_ + 1));
    }
    lists[i] = next;
  }
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
