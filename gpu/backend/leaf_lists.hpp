// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The lists of leaves by which kernels read the dealt order, sliding windows and pages (section 5.3).
#pragma once

#include "gpu/engine/listed_params.hpp"
#include "gpu/platform/launch.hpp"
#include "reference/decode/page_table.hpp"
#include "reference/decode/step.hpp"
#include "reference/state/owned_leaves.hpp"

#include <cstdint>
#include <vector>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// The tree of the dealt order without the levels at which no leaf of a sequence has a right sibling. Leaf numbers below 2^b
/// leave the low 12 - b of the 12 reversed bits of a slot zero; of the 28 bits below, the number divided by 2^12 takes few.
class ListedTree {
 public:
  /// @param n_leaves of the sequence
  ListedTree(const OwnedLeaves& leaves, std::int64_t n_leaves);
  std::int64_t slot(std::int64_t slot) const {
    return (slot >> (kSlotBits - n_top_)) << n_low_ | (slot & ((std::int64_t{1} << (kSlotBits - kDealtBits)) - 1));
  }
  /// A position of the tree that bounds a range of slots.
  std::int64_t bound(std::int64_t position) const { return (position >> (kPositionBits - n_top_)) << (n_low_ + kLeafLevel); }

 private:
  int n_top_, n_low_;  ///< bits that remain
};

/// The lists of a batch. The leaves of one are uploaded when its sequence begins a leaf, its sliding window another one, or
/// its pages change. What a list says of itself is a part of what every step uploads: see StepInput.
class LeafLists {
 public:
  LeafLists() = default;
  /// Empty lists, with memory for n_leaves leaves each.
  LeafLists(std::int64_t batch, std::int64_t n_leaves);

  /// Makes the lists those of the leaves that the queries of a step see. @pre none has more leaves in the range than there
  /// is memory for, and no kernel reads them
  /// @param range that of the leaves, closed(), or in the contiguous order a part of it @param pages where they are; null:
  /// in the order of storage
  /// @param[in, out] lists [b], as the call before has left them
  void update(const OwnedLeaves& leaves, KeyRange range, const Step& step, const PageTable* pages, LeafList* lists);
  /// Lets a kernel read the leaves.
  void set(ListedParams& params) const { params.leaf = on_device_.data(), params.most_leaves = most_leaves_; }
  /// Leaves that a list has memory for; -1 without lists.
  std::int64_t most_leaves() const { return most_leaves_; }

  /// Most positions that the range has in the tree of a list of at most n_leaves leaves.
  /// @throws DeviceError if its slots have no room in 32 bits
  static std::int64_t tree_positions(const OwnedLeaves& leaves, KeyRange range, std::int64_t n_leaves);

 private:
  /// Source of a list beside the range, from which its leaves follow: leaves of the shard, and the numbers of the leaves at
  /// edges.
  struct Source {
    std::int64_t begin, end, n_places, first, edge_of_first, version;
    SeenRule rule;
    bool operator==(const Source&) const = default;
  };

  std::int64_t most_leaves_ = -1;
  KeyRange range_{0, -1};               ///< that the lists are of
  std::vector<Source> sources_;         ///< [b]
  std::vector<std::int64_t> edges_;     ///< [b] the leaves from here on are not marked as seen whole
  std::vector<ListedLeaf> leaf_;        ///< of one list, as they are uploaded
  DeviceBuffer<ListedLeaf> on_device_;  ///< [b, most_leaves]
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
