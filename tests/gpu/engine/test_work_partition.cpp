// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The partition of equal runs: every position of every query tile once, and no block with more than its share
/// (section 5.3).
#include "gpu/engine/division.hpp"
#include "gpu/ladder/ladder.hpp"
#include "tests/gpu/engine/part_kernels.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <vector>

namespace tree_attn::test {
namespace {

namespace device = TREE_ATTN_PLATFORM;

/// Positions of which two sequences, with 24 query tiles each, have nearly as many work items as 32 bits can count.
constexpr std::int64_t kLong = 89'000'000 * kLeafKeys;

}  // namespace

/// @tested{thm_1, Thm. 1}
TEST_CASE("work partition: blocks cover every query tile, in order, with runs that differ by one leaf at most") {
  const std::vector<std::vector<std::int64_t>> batches{
      {1000}, {0}, {0, 1, 64, 65, 1000, 5}, {100000, 3, 3}, {kLong, 3, kLong + 65}};
  for (const std::vector<std::int64_t>& lengths : batches) {
    for (const KeyRange shard : {KeyRange{0, 100000}, KeyRange{0, 2 * kLong}, KeyRange{64, 900}, KeyRange{64, 128},
                                 KeyRange{64, 70}, KeyRange{500, 500}}) {
      for (const int log_rows : {0, 3}) {
        for (const Count n_blocks : {1, 2, 7, 64, 132, 5000}) {
          INFO("shard from " << shard.begin << ", " << n_blocks << " blocks, 2^" << log_rows << " rows");
          DecodeParams params;
          params.lengths = lengths.data(), params.batch = static_cast<std::int64_t>(lengths.size());
          params.kv_heads = 2, params.group = 12;
          params.begin = shard.begin, params.end = shard.end;
          const std::int64_t tiles_per_kv_head = log_rows == 0 ? 12 : 2;
          const WorkPartition partition(params, log_rows, n_blocks);

          // Follow all blocks; note where each query tile has got to.
          std::map<std::int64_t, std::int64_t> reached;
          const Count n_work_items = partition.begin_of(n_blocks);
          Count most = 0, least = n_work_items;
          bool right = true;
          for (Count block = 0; block < n_blocks; ++block) {
            const Count begin = partition.begin_of(block), end = partition.begin_of(block + 1);
            if (begin < end) most = std::max(most, end - begin), least = std::min(least, end - begin);
            for (Count work_item = begin; work_item < end;) {
              const WorkRange work_range = partition.work_range_at(params, work_item, end);
              const auto at = reached.try_emplace(work_range.query_tile, work_range.whole.begin).first;
              right = right && partition.block_of(work_item) == block && work_range.positions.begin == at->second &&
                      work_range.positions.begin <= work_range.positions.end &&
                      work_range.kv_head == work_range.query_tile / tiles_per_kv_head && work_range.first == work_item &&
                      work_range.last <= end && work_range.last > work_item;
              at->second = work_range.positions.end;
              work_item = work_range.last;
            }
          }
          CHECK(right);
          CHECK(most - least <= 1);
          if (shard.end == 2 * kLong && lengths[0] == kLong && log_rows == 0)
            CHECK(n_work_items > kMostWorkItems / 100 * 99);
          CHECK(reached.size() == lengths.size() * 2 * static_cast<std::size_t>(tiles_per_kv_head));
          CHECK(std::ranges::all_of(
              reached, [&](const auto& each) { return each.second == params.leaves(each.first / tiles_per_kv_head).end; }));
        }
      }
    }
  }
}

TEST_CASE("work partition: a warp finds what one thread finds, in batches of any size") {
  for (const Count n : {1, 2, 5, 31, 32, 33, 64, 65, 100}) {
    CAPTURE(n);
    std::vector<Count> counts, expected;
    for (Count i = 0; i < n; ++i) counts.push_back(i % 7 == 3 ? 9 : 1 + i % 3);
    const auto of = [&counts](Count i) { return counts[i]; };
    expected.push_back(SerialScan::sum(n, of));
    FoundEntry before;
    bool same = true;
    for (Count item = 0; item < expected[0]; ++item) {
      const FoundEntry found = SerialScan::find(n, item, of);
      expected.push_back(found.entry), expected.push_back(found.first);
      // The same from an entry before it.
      const FoundEntry again = SerialScan::find(n, item, of, before);
      same = same && again.entry == found.entry && again.first == found.first;
      if (item % 5 == 0) before = found;
    }
    CHECK(same);
    CHECK(device::scan_on_device(counts) == expected);
  }
}

/// Of n entries a block reads the lengths of all, to know the work, and those up to its first one; then it goes on from
/// entry to entry. A search from the first entry for each of them would be quadratic.
TEST_CASE("work partition: twice the batch is twice the reads of lengths") {
  for (const int n_blocks : {1, 3}) {
    CAPTURE(n_blocks);
    const unsigned n_of_half = device::n_asked_on_device(320, n_blocks), n = device::n_asked_on_device(640, n_blocks);
    CHECK(n_of_half >= 320);
    CHECK(10 * n <= 21 * n_of_half);
  }
}

/// The shapes that are timed: query tiles, leaves, and blocks of a cluster.
TEST_CASE("short end: clusters of an H200, which holds fewer than it has multiprocessors for") {
  constexpr int kShapes[][3] = {{16, 128, 0}, {16, 32, 0},  {16, 8, 6},  {8, 128, 0}, {8, 32, 10},
                                {8, 8, 8},    {15, 128, 8}, {1, 128, 0}, {32, 128, 0}};
  for (const auto& [n_query_tiles, n_leaves, cluster] : kShapes) {
    CAPTURE(n_query_tiles);
    CAPTURE(n_leaves);
    CHECK(device::cluster_on_h200(n_query_tiles, n_leaves, 0) == cluster);
  }
  for (const int wanted : {8, 10, 16}) CHECK(device::cluster_on_h200(8, 128, wanted) == wanted);
}

TEST_CASE("work partition: what 32 bits cannot count is refused by every step") {
  DecodeParams params;
  params.batch = 3, params.kv_heads = 5, params.group = 17;  // 255 rows
  params.d_h = params.d_v = 8;
  for (const device::LadderStep* step : device::all_kernels()) {
    params.end = 1;
    const DType dtype = step->refusal(params, DType::F32) == "" ? DType::F32 : DType::BF16;
    params.end = (kMostWorkItems / 255 - 1) * kLeafKeys + 1;
    CHECK(step->refusal(params, dtype) == "");
    params.end = kMostWorkItems / 255 * kLeafKeys + 1;
    CHECK(step->refusal(params, dtype) == "255 rows over 16843010 leaves: more than 4294967295 work items");
    DecodeParams far = params;
    far.end = kMostWorkItems * kLeafKeys, far.begin = far.end - kLeafKeys;
    CHECK(step->refusal(far, dtype) == "");
    ++far.end;
    CHECK(step->refusal(far, dtype) == "position 274877906881: more than 2^38 - 64");
  }
}

}  // namespace tree_attn::test
