// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The leaves of a sequence by ascending slot.
#include "gpu/backend/leaf_lists.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <span>

namespace tree_attn::TREE_ATTN_PLATFORM {

ListedTree::ListedTree(const OwnedLeaves& leaves, std::int64_t n_leaves)
    : n_top_(std::clamp<int>(std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(n_leaves, 1) - 1)),
                             leaves.period_bits(), kDealtBits)),
      n_low_(n_leaves > 0 ? std::bit_width(static_cast<std::uint64_t>((n_leaves - 1) >> kDealtBits)) : 0) {}

std::int64_t LeafLists::tree_positions(const OwnedLeaves& leaves, KeyRange range, std::int64_t n_leaves) {
  std::int64_t begin = range.begin, end = range.end;
  if (leaves.order() == LeafOrder::kDealt) {
    // The longest sequence with so many leaves of the range ends before the next one. A range without slots has no leaf.
    const ListedTree tree(leaves, leaves.range().empty() ? 0 : leaves.leaf(n_leaves));
    begin = tree.bound(leaves.range().begin), end = tree.bound(leaves.range().end);
  }
  if (end / kLeafKeys >= std::numeric_limits<std::int32_t>::max())
    throw DeviceError(std::to_string(n_leaves) + " leaves, whose slots have no room in 32 bits");
  return end - begin;
}

LeafLists::LeafLists(std::int64_t batch, std::int64_t n_leaves)
    : most_leaves_(n_leaves), on_device_(batch * n_leaves, MemoryUse::Input) {
  leaf_.reserve(static_cast<std::size_t>(n_leaves));
}

namespace {

/// Calls use(slot, place, number) for the leaves of a range among the first n of a sequence that a query sees, by ascending
/// slot. @param range in the contiguous order some of the leaves
template <class Use>
void for_each_seen(const OwnedLeaves& leaves, KeyRange range, std::int64_t n, const Seen& seen, const Use& use) {
  const auto is_seen = [&](std::int64_t leaf) { return seen.touches(leaf * kLeafKeys, (leaf + 1) * kLeafKeys); };
  if (leaves.order() == LeafOrder::kDealt) {
    leaves.for_each_by_slot(n, [&](std::int64_t slot, std::int64_t place) {
      if (const std::int64_t leaf = leaves.leaf(place); is_seen(leaf)) use(slot, place, leaf);
    });
    return;
  }
  const std::int64_t first = leaves.range().begin / kLeafKeys, begin = range.begin / kLeafKeys,
                     end = std::min(n, (range.end + kLeafKeys - 1) / kLeafKeys),
                     window = std::max(begin, seen.begin / kLeafKeys);
  for (std::int64_t leaf = begin; leaf < std::min(end, window) && is_seen(leaf); ++leaf) use(leaf, leaf - first, leaf);
  for (std::int64_t leaf = window; leaf < end; ++leaf) use(leaf, leaf - first, leaf);
}

/// Slots of ascending leaves without the empty siblings on their left: an empty subtree is neutral, so what is on its right
/// takes its place, and the merges are the same. So a leaf stands at the begin of the largest subtree that it is the first
/// leaf of.
class WithoutEmptySlots {
 public:
  /// @param range of the shard in the tree
  explicit WithoutEmptySlots(KeyRange range) : range_(range) {}
  std::int64_t operator()(std::int64_t slot) {
    const bool is_new_node = slot * kLeafKeys >= node_.end() || is_first_;
    while (slot * kLeafKeys >= node_.end() || is_first_)
      node_ = first_subtree(is_first_ ? range_.begin : node_.end(), range_.end), is_first_ = false;
    if (is_new_node) {
      placed_ = node_.begin() / kLeafKeys;
    } else {
      const int side = std::bit_width(static_cast<std::uint64_t>(slot ^ last_)) - 1;  // where it parts from the leaf before
      placed_ = ((placed_ >> side) | 1) << side;
    }
    last_ = slot;
    return placed_;
  }

 private:
  KeyRange range_;
  Subtree node_{};
  bool is_first_ = true;
  std::int64_t last_ = 0, placed_ = 0;
};

/// Notes where the widest gap between two leaves of a list is, and where the list begins and ends.
void find_gap(std::span<const ListedLeaf> leaves, LeafList& list) {
  if (leaves.empty()) return;
  std::size_t widest = leaves.size();
  std::int32_t gap = 1;
  for (std::size_t i = 1; i < leaves.size(); ++i)
    if (const std::int32_t n = leaves[i].slot - leaves[i - 1].slot; n > gap) gap = n, widest = i;
  list.first_slot = leaves.front().slot, list.end_slot = leaves.back().slot + 1;
  list.n_before_gap = static_cast<std::int32_t>(widest);
  list.gap = leaves[widest - 1].slot + 1;
  list.after_gap = widest < leaves.size() ? leaves[widest].slot : list.end_slot;
}

}  // namespace

void LeafLists::update(const OwnedLeaves& leaves, KeyRange closed_range, const Step& step, const PageTable* pages,
                       LeafList* lists) {
  const bool is_other_range = range_.begin != closed_range.begin || range_.end != closed_range.end;
  range_ = closed_range;
  sources_.resize(step.lengths.size()), edges_.resize(step.lengths.size());
  const auto leaf_before = [](std::int64_t position) { return (position - 1) >> kLeafLevel; };
  for (std::size_t i = 0; i < step.lengths.size(); ++i) {
    const std::int64_t length = step.lengths[i], l = step.q.shape[2], n = leaf_before(length) + 1;
    const Seen any = step.rule.of_any(length, l), all = step.rule.of_all(length, l);
    const bool is_dealt = leaves.order() == LeafOrder::kDealt;
    const ListedTree tree(leaves, n);
    const KeyRange range = is_dealt ? KeyRange{tree.bound(range_.begin), tree.bound(range_.end)} : range_;
    const Source source{range.begin,
                        range.end,
                        leaf_before(leaves.n_keys(length)) + 1,
                        any.begin >> kLeafLevel,
                        all.begin >> kLeafLevel,
                        pages == nullptr ? 0 : pages->version(static_cast<std::int64_t>(i)),
                        step.rule};
    const std::int64_t edge = leaf_before(all.end);
    if (!is_other_range && source == sources_[i] && edge >= edges_[i]) continue;
    sources_[i] = source, edges_[i] = edge;
    LeafList& list = lists[i];
    list = {.begin = range.begin, .end = range.end, .last = -1};
    leaf_.clear();
    WithoutEmptySlots place_slot(range);
    for_each_seen(leaves, range_, n, any, [&](std::int64_t slot, std::int64_t place, std::int64_t leaf) {
      if (place == source.n_places - 1) list.last = static_cast<std::int32_t>(leaf_.size());
      const bool has_first = step.rule.window > 0 && leaf <= source.edge_of_first, has_last = leaf >= edge;
      leaf_.push_back(
          {static_cast<std::int32_t>(place_slot(is_dealt ? tree.slot(slot) : slot)),
           static_cast<std::int32_t>(pages == nullptr ? place : pages->page(static_cast<std::int64_t>(i), place)),
           has_first || has_last ? static_cast<std::int32_t>(leaf) : kSeenWhole});
    });
    list.n_leaves = static_cast<std::int32_t>(leaf_.size());
    find_gap(leaf_, list);
    on_device_.upload(leaf_, static_cast<std::int64_t>(i) * most_leaves_);
  }
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
