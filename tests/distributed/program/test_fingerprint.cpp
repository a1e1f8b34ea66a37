// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The rows by which ranks compare their caches. That a difference is refused is tested over ranks of the program.
#include "distributed/program/fingerprint.hpp"

#include <doctest/doctest.h>

#include <random>
#include <set>

namespace tree_attn {

TEST_CASE("sampled rows: few, distinct, in use, evenly spaced from the first to the last") {
  std::mt19937 random(8100);
  const auto below = [&](std::int64_t n) { return std::uniform_int_distribution<std::int64_t>(0, n - 1)(random); };
  for (int repeat = 0; repeat < 200; ++repeat) {
    std::vector<std::int64_t> lengths{1 + below(9)};
    for (std::int64_t i = below(20); i >= 0; --i) lengths.push_back(below(4) * below(500));
    lengths.push_back(1 + below(500));
    const std::int64_t kv_heads = 1 + below(9), last = std::ssize(lengths) - 1;
    const std::vector<CacheRow> rows = sampled_rows(lengths, kv_heads);
    CHECK(rows.size() <= 192);
    CHECK(rows.front() == CacheRow{0, 0, 0});
    CHECK(rows.back() == CacheRow{last, kv_heads - 1, lengths.back() - 1});
    CHECK(std::set<CacheRow>(rows.begin(), rows.end()).size() == rows.size());
    std::int64_t n_rows = 0;
    for (const std::int64_t n : lengths) n_rows += kv_heads * n;
    const std::int64_t step = n_rows <= 192 ? 1 : n_rows / 191 + 1;
    for (std::size_t i = 1; i < rows.size(); ++i) {
      const auto& [entry, head, position] = rows[i];
      const std::int64_t n = lengths.at(static_cast<std::size_t>(entry));
      CHECK((head >= 0 && head < kv_heads && position >= 0 && position < n));
      if (entry == rows[i - 1].entry) CHECK((head - rows[i - 1].head) * n + position - rows[i - 1].position <= step);
    }
  }
}

TEST_CASE("sampled rows: none where no key is in use") {
  const std::int64_t none[] = {0, 0}, one[] = {0, 1};
  CHECK(sampled_rows({}, 4).empty());
  // More rows than 64 bits count: an overflow that the sanitizer finds.
  CHECK(sampled_rows(none, std::int64_t{1} << 61).empty());
  CHECK(sampled_rows(one, 0).empty());
  CHECK(sampled_rows(one, 1) == std::vector<CacheRow>{{1, 0, 0}});
}

}  // namespace tree_attn
