// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The rows by which ranks compare their caches. That a difference is refused is tested over ranks of the program.
#include "distributed/program/fingerprint.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>

namespace tree_attn {

TEST_CASE("sampled rows: the first and the last row in use of every shard, and rows between") {
  for (const auto& [p, lengths] : std::vector<std::pair<int, std::vector<std::int64_t>>>{
           {1, {1000}}, {2, {1000, 700}}, {3, {3000, 1}}, {31, {31000, 15500}}, {64, {64000}}}) {
    CAPTURE(p);
    const std::vector<KeyRange> ranges = even_ranges(lengths[0], p, kLeafKeys);
    const std::vector<CacheRow> rows = sampled_rows(ranges, lengths, 1);
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const auto entry = static_cast<std::int64_t>(i);
      for (const KeyRange& range : ranges) {
        const std::int64_t end = std::min(range.end, lengths[i]);
        if (end <= range.begin) continue;
        CHECK(std::ranges::count(rows, CacheRow{entry, 0, range.begin}) == 1);
        CHECK(std::ranges::count(rows, CacheRow{entry, 0, end - 1}) == 1);
        const auto between = [&](const CacheRow& row) {
          return row.entry == entry && row.position > range.begin && row.position < end - 1;
        };
        if (end - range.begin > 2) CHECK(std::any_of(rows.begin(), rows.end(), between));
      }
    }
  }
}

TEST_CASE("sampled rows: few, distinct, in use, and from every part of the cache") {
  std::mt19937 random(8100);
  const auto below = [&](std::int64_t n) { return std::uniform_int_distribution<std::int64_t>(0, n - 1)(random); };
  for (int repeat = 0; repeat < 200; ++repeat) {
    std::vector<std::int64_t> shards, lengths;
    for (std::int64_t i = below(100); i >= 0; --i) shards.push_back(below(4) * below(8) * kLeafKeys);
    const std::vector<KeyRange> ranges = ranges_of_lengths(shards);
    for (std::int64_t i = below(20); i >= 0; --i) lengths.push_back(below(ranges.back().end + 1));
    const std::int64_t kv_heads = 1 + below(9);
    const std::vector<CacheRow> rows = sampled_rows(ranges, lengths, kv_heads);
    CHECK(rows.size() <= 192);
    CHECK(std::set<CacheRow>(rows.begin(), rows.end()).size() == rows.size());
    for (const auto& [entry, head, position] : rows) {
      CHECK((head >= 0 && head < kv_heads));
      CHECK((position >= 0 && position < lengths.at(static_cast<std::size_t>(entry))));
    }
  }
  // More blocks than are sampled: rows of the first shard and the last, of the first entry and the last, of all heads but
  // few.
  const std::vector<KeyRange> ranges = even_ranges(3000, 10, kLeafKeys);
  const std::vector<std::int64_t> lengths(20, 3000);
  const std::vector<CacheRow> rows = sampled_rows(ranges, lengths, 8);
  CHECK(rows.size() == 192);
  CHECK(rows.front() == CacheRow{0, 0, 0});
  CHECK(rows.back() == CacheRow{19, 7, 2999});
  for (const KeyRange& range : ranges)
    CHECK(std::any_of(rows.begin(), rows.end(), [&](const CacheRow& row) { return row.position == range.begin; }));
}

TEST_CASE("sampled rows: none where no key is in use") {
  const std::int64_t none[] = {0, 0}, one[] = {0, 1};
  CHECK(sampled_rows(even_ranges(0, 3, kLeafKeys), none, 4).empty());
  CHECK(sampled_rows(even_ranges(9, 3, kLeafKeys), none, 4).empty());
  CHECK(sampled_rows(even_ranges(9, 3, kLeafKeys), {}, 4).empty());
  // More blocks than 64 bits count: an overflow that the sanitizer finds.
  CHECK(sampled_rows(even_ranges(0, 9, kLeafKeys), none, std::int64_t{1} << 61).empty());
  CHECK(sampled_rows(even_ranges(9, 3, kLeafKeys), one, 0).empty());
  CHECK(sampled_rows(even_ranges(9, 3, kLeafKeys), one, 1) == std::vector<CacheRow>{{1, 0, 0}});
}

}  // namespace tree_attn
