// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Cuts of a sequence; algorithms and backends found by name.
#include "distributed/exchange/decoder.hpp"
#include "gpu/backend/backends.hpp"
#include "reference/data/input_error.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

namespace tree_attn {

/// Checks that p ranges lie one after the other over all keys, cut at multiples of a number of keys.
static void check_cuts(const std::vector<KeyRange>& ranges, std::int64_t n_keys, int p, std::int64_t multiple) {
  REQUIRE(ranges.size() == static_cast<std::size_t>(p));
  CHECK(ranges.front().begin == 0);
  CHECK(ranges.back().end == n_keys);
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    if (i > 0) CHECK(ranges[i].begin == ranges[i - 1].end);
    CHECK((ranges[i].end % multiple == 0 || ranges[i].end == n_keys));
  }
}

TEST_CASE("even ranges: neighbours touch, cuts fall between leaves, lengths differ by a leaf at most, longer ones first") {
  for (const std::int64_t leaf : {1, 3, 64}) {
    for (const std::int64_t n_keys : {0, 1, 2, 63, 64, 65, 128, 1000}) {
      for (int p = 1; p <= 17; ++p) {
        CAPTURE(leaf);
        CAPTURE(n_keys);
        CAPTURE(p);
        const std::vector<KeyRange> ranges = even_ranges(n_keys, p, leaf);
        check_cuts(ranges, n_keys, p, leaf);
        const auto n_leaves = [&](std::size_t i) { return (ranges[i].size() + leaf - 1) / leaf; };
        for (std::size_t i = 1; i < ranges.size(); ++i) CHECK(n_leaves(i) <= n_leaves(i - 1));
        CHECK(n_leaves(0) - n_leaves(ranges.size() - 1) <= 1);
        CHECK(ranges.back().size() >= 0);
      }
    }
  }
}

TEST_CASE("coarse ranges: few subtrees at the paper's lengths, nearly equal, and no rank is empty while there are leaves") {
  const auto subtrees_per_rank = [](const std::vector<KeyRange>& ranges) {
    double n = 0;
    for (const KeyRange& range : ranges) n += n_subtrees(range.begin, range.end);
    return n / static_cast<double>(ranges.size());
  };
  // 5.12M keys on 128 ranks: cuts at multiples of 4096.
  const std::vector<KeyRange> fine = even_ranges(5120000, 128, kLeafKeys), coarse = coarse_ranges(5120000, 128, kLeafKeys);
  CHECK(subtrees_per_rank(fine) == doctest::Approx(9.2).epsilon(0.005));
  CHECK(subtrees_per_rank(coarse) == doctest::Approx(2.67).epsilon(0.005));
  for (const KeyRange& range : coarse) {
    CHECK(static_cast<double>(range.size()) <= 1.025 * 40000);
    CHECK(n_subtrees(range.begin, range.end) <= 4);
  }

  for (const std::int64_t n_keys : {0, 1, 64, 65, 1000, 8191, 65536, 80000, 1000003, 5120000}) {
    for (int p = 1; p <= 140; ++p) {
      CAPTURE(n_keys);
      CAPTURE(p);
      const std::vector<KeyRange> ranges = coarse_ranges(n_keys, p, kLeafKeys);
      std::int64_t multiple = kLeafKeys;
      while (16 * multiple * p <= n_keys) multiple *= 2;
      check_cuts(ranges, n_keys, p, multiple);
      for (std::size_t i = 0; i < ranges.size(); ++i) {
        CHECK(ranges[i].empty() == (static_cast<std::int64_t>(i) >= (n_keys + kLeafKeys - 1) / kLeafKeys));
        CHECK(static_cast<double>(ranges[i].size()) <= static_cast<double>(n_keys) / p + static_cast<double>(multiple));
      }
    }
  }
}

TEST_CASE("ranges of lengths: one after the other, zeros allowed") {
  const std::int64_t lengths[] = {0, 3, 0, 5};
  const std::vector<KeyRange> ranges = ranges_of_lengths(lengths);
  CHECK(ranges == std::vector<KeyRange>{{0, 0}, {0, 3}, {3, 3}, {3, 8}});
}

TEST_CASE("names: every algorithm is found by its own, others are refused in a line that lists them") {
  std::string names;
  for (const Algorithm& algorithm : all_algorithms()) {
    names += (names.empty() ? "" : ", ") + std::string(algorithm.name);
    CHECK(&find_algorithm(algorithm.name) == &algorithm);
  }
  for (const std::string_view name : {"paper", "packed", "fused"}) CHECK_FALSE(find_algorithm(name).keeps_bits);
  const std::string line = "--algorithm tree: unknown; use one of " + names;
  CHECK_THROWS_WITH_AS(find_algorithm("tree"), line.c_str(), InputError);
  CHECK(&find_backend("cpu") == &cpu_backend());
  CHECK(&find_backend("emulated") == &emulated::backend());
  for (const Backend* backend : backends()) {
    CHECK(std::count(backend_names().begin(), backend_names().end(), backend->name()) == 1);
    if (backend->missing().empty()) CHECK(&find_backend(backend->name()) == backend);
  }
  CHECK_THROWS_WITH_AS(find_backend("tpu"), "--backend tpu: unknown; use one of cpu, emulated, cuda", InputError);
}

}  // namespace tree_attn
