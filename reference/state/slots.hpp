// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Slots: the positions of leaves in the canonical tree, and the two orders in which leaves take them (section 5.3).
///
/// The tree stands over slots of 64 positions. An order says which leaf of the sequence is in which slot. Ranges, covers,
/// forests and plans refer to slots in both orders: position = 64 slot + offset inside the leaf.
///
/// - `contiguous`: slot = leaf. A rank holds a chunk of the sequence, as in the paper.
/// - `dealt`: leaves are dealt to the ranks round robin. The low 12 bits of the leaf number, reversed, are the top bits of a
///   slot of 40 bits; the rest of the number follows in natural order:
///
///       slot(j) = 2^28 bitrev_12(j mod 2^12) + floor(j / 2^12),        0 <= j < 2^40.
///
///   The subtree at depth t <= 12, index i from the left, therefore holds the leaves j with j mod 2^t = bitrev_t(i). A range
///   of slots is a set of residues: its owner gets its share of every 4096 leaves to come, so the ranges never change.
#pragma once

#include "reference/state/host_device.hpp"
#include "reference/state/key_range.hpp"
#include "reference/state/subtree.hpp"

#include <bit>
#include <cstdint>
#include <string_view>
#include <vector>

namespace tree_attn {

/// Order of the leaves: the map from leaves to slots.
enum class LeafOrder {
  kContiguous,  ///< slot = leaf
  kDealt        ///< bit reversal of the low 12 bits of the leaf number
};

/// The name that --order accepts.
constexpr std::string_view name_of(LeafOrder order) { return order == LeafOrder::kDealt ? "dealt" : "contiguous"; }

/// Bits of a slot.
inline constexpr int kSlotBits = 40;
/// Bits of a position of the tree.
inline constexpr int kPositionBits = kSlotBits + kLeafLevel;
/// Low bits of the leaf number that the dealt order reverses. At most 2^12 ranks can share a sequence.
inline constexpr int kDealtBits = 12;
/// Most ranks of the dealt order.
inline constexpr int kMostDealtRanks = 1 << kDealtBits;

/// The lowest `n_bits` bits of n, the last one first.
TREE_ATTN_HOST_DEVICE constexpr std::int64_t reverse_bits(std::int64_t n, int n_bits) {
  std::int64_t reversed = 0;
  for (int i = 0; i < n_bits; ++i) reversed = reversed << 1 | (n >> i & 1);
  return reversed;
}

/// The slot of a leaf. @pre 0 <= leaf < 2^40
TREE_ATTN_HOST_DEVICE constexpr std::int64_t slot_of(LeafOrder order, std::int64_t leaf) {
  if (order == LeafOrder::kContiguous) return leaf;
  return reverse_bits(leaf, kDealtBits) << (kSlotBits - kDealtBits) | leaf >> kDealtBits;
}

/// The leaf in a slot: the inverse of slot_of(). @pre 0 <= slot < 2^40
TREE_ATTN_HOST_DEVICE constexpr std::int64_t leaf_of(LeafOrder order, std::int64_t slot) {
  if (order == LeafOrder::kContiguous) return slot;
  constexpr int kLow = kSlotBits - kDealtBits;
  return (slot & ((std::int64_t{1} << kLow) - 1)) << kDealtBits | reverse_bits(slot >> kLow, kDealtBits);
}

/// Top bits of a slot that decide its owner among p ranks: log2 p for a power of two, else four more than ceil(log2 p), at
/// most 12. More bits would balance the shards better and cut them into more subtrees.
constexpr int owner_bits(int p) {
  const int least = std::bit_width(static_cast<unsigned>(p > 0 ? p - 1 : 0));
  return std::has_single_bit(static_cast<unsigned>(p)) ? least : least + 4 < kDealtBits ? least + 4 : kDealtBits;
}

/// The ranges of p ranks in the dealt order. The owner of a slot whose top b = owner_bits(p) bits are t is floor(t p / 2^b),
/// so leaf j belongs to rank
///
///     owner(j) = floor(bitrev_b(j mod 2^b) p / 2^b).
///
/// The ranges depend on p alone, not on the number of keys. For p = 2^a each one is a single subtree, rank r holds the
/// leaves with j mod p = bitrev_a(r), and the longest shard is less than one leaf longer than the mean. For other p a range
/// has at most 8 subtrees, and up to p = 256 the longest shard is at most 6 % and five leaves longer than the mean. Beyond,
/// 12 bits are too few for an even cut: 12 % for p = 511, 22 % for p = 1000.
/// @throws std::invalid_argument unless 1 <= p <= kMostDealtRanks
inline std::vector<KeyRange> dealt_ranges(int p) {
  require(p >= 1 && p <= kMostDealtRanks, "dealt_ranges: ", p, " ranks; the dealt order takes 1 to ", kMostDealtRanks);
  const int b = owner_bits(p);
  const auto cut = [b, p](std::int64_t rank) { return ((rank << b) + p - 1) / p << (kPositionBits - b); };
  std::vector<KeyRange> ranges;
  for (int rank = 0; rank < p; ++rank) ranges.push_back({cut(rank), cut(rank + 1)});
  return ranges;
}

}  // namespace tree_attn
