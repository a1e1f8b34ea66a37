// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Slots: the two orders of leaves, the owners of the dealt one, and the rows in which a rank stores its keys.
#include "reference/state/forest.hpp"
#include "reference/state/owned_leaves.hpp"
#include "tests/support/message.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

namespace tree_attn::test {
namespace {

constexpr auto kContiguous = LeafOrder::kContiguous, kDealt = LeafOrder::kDealt;

/// The owner of a leaf by the formula, without ranges.
std::int64_t owner(std::int64_t leaf, int p) {
  const int b = owner_bits(p);
  return reverse_bits(leaf, b) * p >> b;
}

}  // namespace

TEST_CASE("slots: both orders are one to one, and contiguous is the identity") {
  for (const LeafOrder order : {kContiguous, kDealt}) {
    std::mt19937_64 random(40);
    for (int i = 0; i < 20000; ++i) {
      const std::int64_t n = i < 10000 ? i : static_cast<std::int64_t>(random() >> (64 - kSlotBits));
      const std::int64_t slot = slot_of(order, n);
      REQUIRE(slot >= 0);
      REQUIRE(slot < std::int64_t{1} << kSlotBits);
      REQUIRE(leaf_of(order, slot) == n);
      REQUIRE(slot_of(order, leaf_of(order, n)) == n);
      if (order == kContiguous) REQUIRE(slot == n);
    }
  }
  CHECK(slot_of(kDealt, 1) == std::int64_t{1} << 39);
  CHECK(slot_of(kDealt, 2) == std::int64_t{1} << 38);
  CHECK(slot_of(kDealt, 3) == std::int64_t{3} << 38);
  CHECK(slot_of(kDealt, 4096 * 5 + 2) == (std::int64_t{1} << 38) + 5);
  CHECK(name_of(kContiguous) == "contiguous");
  CHECK(name_of(kDealt) == "dealt");
}

TEST_CASE("dealt ranges: they cover the slots, agree with the formula of the owner, and for p = 2^a are one subtree") {
  for (int p = 1; p <= 1000; p += p < 300 ? 1 : 37) {
    CAPTURE(p);
    const std::vector<KeyRange> ranges = dealt_ranges(p);
    REQUIRE(std::ssize(ranges) == p);
    CHECK(ranges.front().begin == 0);
    CHECK(ranges.back().end == std::int64_t{1} << kPositionBits);
    std::int64_t largest = 0;
    double longest = 0;
    for (std::size_t r = 0; r < ranges.size(); ++r) {
      if (r > 0) REQUIRE(ranges[r].begin == ranges[r - 1].end);
      largest = std::max<std::int64_t>(largest, n_subtrees(ranges[r].begin, ranges[r].end));
      longest = std::max(longest, static_cast<double>(ranges[r].size()));
    }
    const bool is_power = (p & (p - 1)) == 0;
    CHECK(largest <= (is_power ? 1 : 8));
    // The share of a rank in the long run.
    const double over_mean = longest * p / static_cast<double>(std::int64_t{1} << kPositionBits);
    CHECK(over_mean <= (is_power ? 1 : p <= 256 ? 1.06 : p <= 512 ? 1.13 : 1.23));
    for (std::int64_t leaf = 0; leaf < 9000; leaf += 1 + leaf / 64) {
      const std::int64_t position = slot_of(kDealt, leaf) * kLeafKeys;
      const KeyRange range = ranges[static_cast<std::size_t>(owner(leaf, p))];
      REQUIRE((range.begin <= position && position < range.end));
    }
  }
  CHECK_INVALID(dealt_ranges(4097), "dealt_ranges: 4097 ranks; the dealt order takes 1 to 4096");
  CHECK_THROWS_AS(dealt_ranges(0), std::invalid_argument);
  CHECK(dealt_ranges(4096).size() == 4096);
}

TEST_CASE("dealt ranges: for every number of keys the longest shard is less than a leaf over the mean if p = 2^a") {
  for (const int p : {1, 2, 4, 8, 64, 3, 5, 6, 7, 12, 100, 255}) {
    CAPTURE(p);
    const bool is_power = (p & (p - 1)) == 0;
    const std::vector<KeyRange> ranges = dealt_ranges(p);
    std::vector<OwnedLeaves> owned(ranges.size(), OwnedLeaves({0, 0}));
    for (std::size_t r = 0; r < ranges.size(); ++r) owned[r] = OwnedLeaves(ranges[r], kDealt);
    for (std::int64_t n = 0; n < 200000; n += n < 3000 ? 1 : 1 + n / 150) {
      std::int64_t sum = 0, longest = 0;
      for (const OwnedLeaves& leaves : owned) sum += leaves.n_keys(n), longest = std::max(longest, leaves.n_keys(n));
      REQUIRE(sum == n);
      const double mean = static_cast<double>(n) / p;
      REQUIRE(static_cast<double>(longest) <= (is_power ? 1 : 1.06) * mean + (is_power ? 1 : 5) * kLeafKeys);
    }
  }
}

TEST_CASE("owned leaves: rows are the keys of the range in ascending order, for both orders") {
  for (const int p : {1, 2, 3, 5, 8, 13}) {
    std::vector<std::vector<OwnedLeaves>> sharded(2);
    for (const KeyRange& range : dealt_ranges(p)) sharded[0].emplace_back(range, kDealt);
    for (const KeyRange& range : even_ranges(5000, p, kLeafKeys)) sharded[1].emplace_back(range);
    for (const std::vector<OwnedLeaves>& shards : sharded) {
      for (const std::int64_t n : {0, 1, 63, 64, 65, 1000, 4999, 5000}) {
        std::vector<int> seen(static_cast<std::size_t>(n));
        for (const OwnedLeaves& leaves : shards) {
          std::int64_t before = -1;
          for (std::int64_t a = 0; a < leaves.n_keys(n); ++a) {
            const std::int64_t position = leaves.position(a);
            REQUIRE(position > before);
            REQUIRE(position < n);
            before = position;
            ++seen[static_cast<std::size_t>(position)];
            // The row starts and ends its leaf where its position does.
            const std::int64_t first = a / kLeafKeys * kLeafKeys, last = leaves.end_of_leaf(a) - 1;
            REQUIRE((first <= a && a <= last));
            REQUIRE(leaves.position(first) / kLeafKeys == position / kLeafKeys);
            REQUIRE(leaves.position(last) / kLeafKeys == position / kLeafKeys);
            if (first > 0) REQUIRE(leaves.position(first - 1) / kLeafKeys != position / kLeafKeys);
            if (last + 1 < leaves.n_keys(5000)) REQUIRE(leaves.position(last + 1) / kLeafKeys != position / kLeafKeys);
            if (leaves.order() == kDealt) {
              const std::int64_t slot_position = slot_of(kDealt, position / kLeafKeys) * kLeafKeys;
              REQUIRE((leaves.range().begin <= slot_position && slot_position < leaves.range().end));
              REQUIRE(leaves.index_of(position / kLeafKeys) == a / kLeafKeys);
            }
          }
        }
        REQUIRE(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
      }
    }
  }
}

TEST_CASE("owned leaves: the subtrees of a dealt range are its cover, and name their leaves") {
  for (const int p : {1, 3, 7, 8, 100}) {
    for (const KeyRange& range : dealt_ranges(p)) {
      const OwnedLeaves leaves(range, kDealt);
      const std::vector<Subtree> covering = cover(range.begin, range.end);
      REQUIRE(leaves.subtrees().size() == covering.size());
      std::int64_t n_leaves = 0;
      for (std::size_t i = 0; i < covering.size(); ++i) {
        const DealtSubtree& each = leaves.subtrees()[i];
        CHECK(each.subtree == covering[i]);
        for (std::int64_t u = 0; u < each.n_leaves(10000); ++u) {
          const std::int64_t slot = slot_of(kDealt, each.first + (u << each.depth));
          REQUIRE((slot * kLeafKeys >= each.subtree.begin() && slot * kLeafKeys < each.subtree.end()));
        }
        n_leaves += each.n_leaves(10000);
      }
      CHECK(n_leaves * kLeafKeys == leaves.n_keys(10000 * kLeafKeys));
    }
  }
  CHECK_THROWS_AS(OwnedLeaves({0, 64}, kDealt), std::invalid_argument);
  CHECK(OwnedLeaves({0, 0}, kDealt).n_keys(1000) == 0);
  CHECK(OwnedLeaves({0, 0}, kDealt).subtrees().empty());
}

TEST_CASE("owned leaves: by ascending slot, every leaf of the range once") {
  for (const int p : {1, 3, 8, 100, 512, 4096}) {
    for (const KeyRange& range : {dealt_ranges(p).front(), dealt_ranges(p).back()}) {
      const OwnedLeaves leaves(range, kDealt);
      for (const std::int64_t n : {0, 1, 2, 7, 8, 9, 300, 4095, 4096, 4097, 9001}) {
        std::vector<std::pair<std::int64_t, std::int64_t>> want, found;
        for (std::int64_t i = 0; i * kLeafKeys < leaves.n_keys(n * kLeafKeys); ++i)
          want.emplace_back(slot_of(kDealt, leaves.leaf(i)), i);
        std::sort(want.begin(), want.end());
        leaves.for_each_by_slot(n, [&](std::int64_t slot, std::int64_t index) { found.emplace_back(slot, index); });
        INFO(p << " ranks, " << n << " leaves");
        CHECK(found == want);
      }
    }
  }
}

}  // namespace tree_attn::test
