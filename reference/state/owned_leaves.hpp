// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The leaves in a range of slots, in the order in which their owner stores them (section 5.3).
///
/// A rank stores keys in the order in which they are appended: its leaves by ascending number, without gaps. Row a of a
/// cache is the a-th key of the sequence that lies in the range, in either order of leaves.
#pragma once

#include "reference/state/slots.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace tree_attn {

/// A subtree of the tree in the dealt order, at depth t <= kDealtBits: it holds the leaves r + 2^t u, u = 0, 1, ...
struct DealtSubtree {
  Subtree subtree;
  int depth = 0;           ///< t
  std::int64_t first = 0;  ///< r < 2^t, the lowest of its leaves

  /// Tests whether the subtree holds a leaf.
  bool has(std::int64_t leaf) const { return (leaf & ((std::int64_t{1} << depth) - 1)) == first; }
  /// Number of its leaves among the first n of a sequence.
  std::int64_t n_leaves(std::int64_t n) const { return n > first ? ((n - first - 1) >> depth) + 1 : 0; }
};

/// A range of positions of the tree, an order, and the rows in which the keys of the range are stored.
class OwnedLeaves {
 public:
  /// @param range in the contiguous order positions up to 2^62 from the beginning of a leaf on, or none; in the dealt order
  /// multiples of 2^28 slots, as dealt_ranges() has
  /// @throws std::invalid_argument for another range, or a reversed one
  OwnedLeaves(KeyRange range, LeafOrder order = LeafOrder::kContiguous) : range_(range), order_(order) {  // NOLINT: implicit
    require(range.begin >= 0 && range.begin <= range.end && range.end <= kOpenEnd, "OwnedLeaves: [", range.begin, ", ",
            range.end, ") is no range of positions, which ascend from 0 to 2^62");
    require(begins_leaf(range), "OwnedLeaves: [", range.begin, ", ", range.end, ") begins inside a leaf of ", kLeafKeys,
            " keys");
    if (order == LeafOrder::kContiguous) return;
    constexpr int kClassBits = kPositionBits - kDealtBits;
    require(range.end <= std::int64_t{1} << kPositionBits &&
                ((range.begin | range.end) & ((std::int64_t{1} << kClassBits) - 1)) == 0,
            "OwnedLeaves: [", range.begin, ", ", range.end, ") is not a range of the dealt order");
    // The residues of the leaves modulo 2^b, with as few bits as the ends of the range have.
    const std::int64_t begin = range.begin >> kClassBits, end = range.end >> kClassBits;
    const int zeros = std::countr_zero(static_cast<std::uint64_t>(begin | end | 1 << kDealtBits));
    bits_ = kDealtBits - zeros;
    for (std::int64_t top = begin >> zeros; top < end >> zeros; ++top) residues_.push_back(reverse_bits(top, bits_));
    std::sort(residues_.begin(), residues_.end());
    for (std::int64_t at = range.begin; at < range.end; at = subtrees_.back().subtree.end()) {
      const Subtree subtree = first_subtree(at, range.end);
      const int depth = kPositionBits - subtree.level;
      subtrees_.push_back({subtree, depth, reverse_bits(subtree.index, depth)});
    }
  }

  KeyRange range() const { return range_; }
  LeafOrder order() const { return order_; }
  bool operator==(const OwnedLeaves& other) const { return order_ == other.order_ && range_ == other.range_; }

  /// Most keys that the range has room for.
  std::int64_t most_keys() const {
    return order_ == LeafOrder::kContiguous ? range_.size()
                                            : static_cast<std::int64_t>(residues_.size()) << (kPositionBits - bits_);
  }
  /// Number of keys of the range among the first n of a sequence: the rows that a cache of the range holds of it. 0 for a
  /// negative n.
  std::int64_t n_keys(std::int64_t n) const {
    if (order_ == LeafOrder::kContiguous) return n <= range_.begin ? 0 : std::min(n - range_.begin, range_.size());
    if (n <= 0) return 0;
    const std::int64_t n_full = n / kLeafKeys, in_period = n_full & period_mask();
    const auto next = std::lower_bound(residues_.begin(), residues_.end(), in_period);
    const bool owns_last = next != residues_.end() && *next == in_period;
    return ((n_full >> bits_) * n_residues() + (next - residues_.begin())) * kLeafKeys + (owns_last ? n % kLeafKeys : 0);
  }
  /// Position in the sequence of the key in row a. @throws std::out_of_range unless 0 <= a < most_keys()
  std::int64_t position(std::int64_t a) const {
    require<std::out_of_range>(a >= 0 && a < most_keys(), "OwnedLeaves::position: row ", a, " of ", most_keys());
    return order_ == LeafOrder::kContiguous ? range_.begin + a : leaf(a / kLeafKeys) * kLeafKeys + a % kLeafKeys;
  }
  /// One past the last row of the leaf of row a. Leaf i of the cache has the rows 64 i, ...
  std::int64_t end_of_leaf(std::int64_t a) const { return std::min(most_keys(), (a / kLeafKeys + 1) * kLeafKeys); }

  /// @name The dealt order
  /// @{
  /// The maximal subtrees of the range, from left to right.
  const std::vector<DealtSubtree>& subtrees() const { return subtrees_; }
  /// Number of the leaf that is stored as leaf i.
  std::int64_t leaf(std::int64_t i) const {
    return i / n_residues() << bits_ | residues_[static_cast<std::size_t>(i % n_residues())];
  }
  /// Index at which a leaf of the range is stored: the inverse of leaf().
  std::int64_t index_of(std::int64_t leaf) const {
    const auto found = std::lower_bound(residues_.begin(), residues_.end(), leaf & period_mask());
    return (leaf >> bits_) * n_residues() + (found - residues_.begin());
  }
  /// Bits of the leaf number that say whether a leaf is in the range.
  int period_bits() const { return bits_; }
  /// Calls use(slot, index_of(leaf)) for every leaf of the range among the first n of a sequence, by ascending slot.
  template <class Use>
  void for_each_by_slot(std::int64_t n, const Use& use) const {
    for (const DealtSubtree& each : subtrees_) {
      // Leaf u of the subtree is in class u mod C, C = 2^(12 - t). Classes stand in the order of their reversed bits, those
      // beyond n_u have no leaf; inside a class leaves ascend.
      const std::int64_t n_u = each.n_leaves(n);
      const int class_bits = std::min<int>(kDealtBits - each.depth,
                                           std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(n_u, 1) - 1)));
      for (std::int64_t i = 0; i < std::int64_t{1} << class_bits; ++i) {
        for (std::int64_t u = reverse_bits(i, class_bits); u < n_u; u += std::int64_t{1} << (kDealtBits - each.depth)) {
          const std::int64_t leaf = each.first + (u << each.depth);
          use(slot_of(LeafOrder::kDealt, leaf), index_of(leaf));
        }
      }
    }
  }
  /// @}

 private:
  std::int64_t n_residues() const { return static_cast<std::int64_t>(residues_.size()); }
  std::int64_t period_mask() const { return (std::int64_t{1} << bits_) - 1; }

  KeyRange range_;
  LeafOrder order_;
  int bits_ = 0;                        ///< b: the leaves of the range repeat with period 2^b
  std::vector<std::int64_t> residues_;  ///< of its leaves modulo 2^b, ascending
  std::vector<DealtSubtree> subtrees_;
};

/// The range of every rank for a sequence of n keys to which others are appended. In the contiguous order those go to the
/// last rank, whose range is open. @throws std::invalid_argument as coarse_ranges() and dealt_ranges()
inline std::vector<KeyRange> growing_ranges(LeafOrder order, std::int64_t n_keys, int p) {
  if (order == LeafOrder::kDealt) return dealt_ranges(p);
  std::vector<KeyRange> ranges = coarse_ranges(n_keys / kLeafKeys * kLeafKeys, p, kLeafKeys);
  ranges.back().end = kOpenEnd;
  return ranges;
}

}  // namespace tree_attn
