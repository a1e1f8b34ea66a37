// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The rules of what a query sees, by their definition; hidden positions are not read. Random rules, with masks,
/// are in test_mask.cpp.
#include "reference/decode/backend.hpp"
#include "tests/support/seen_cases.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace tree_attn::test::seen_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("seen: the rules, by their definition") {
  for (const bool causal : {false, true}) {
    for (std::int64_t l = 1; l <= 5; ++l) {
      for (std::int64_t length = 0; length <= 12; ++length) {
        for (std::int64_t window = 0; window <= 13; ++window) {
          for (const std::int64_t sinks : {0, 1, 4, 20}) {
            const SeenRule rule{causal, window, sinks};
            for (std::int64_t position = 0; position <= 13; ++position) {
              bool any = false, all = true;
              for (std::int64_t j = 0; j < l; ++j) {
                const std::int64_t own = causal ? length - l + j : length - 1;  // the last key that the query may see
                const bool sees = position <= own && (window == 0 || position > own - window || position < sinks);
                REQUIRE(rule.of(length, l, j).contains(position) == sees);
                any = any || sees, all = all && sees;
              }
              REQUIRE(rule.of_any(length, l).contains(position) == any);
              REQUIRE(rule.of_all(length, l).contains(position) == all);
              REQUIRE(rule.of_any(length, l).touches(position, position + 1) == any);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("seen: a learned sink of NaN or +inf makes the row NaN, as the formula says") {
  for (const float s : {kInf, std::numeric_limits<float>::quiet_NaN()}) {
    float state[] = {2, 1, 3};
    add_sink(state, s, 1);
    float z = 0;
    CHECK(std::isnan(finish(state, &z, 1)));
    CHECK(std::isnan(z));
  }
}

TEST_CASE("seen: a learned sink of -inf changes no bit") {
  const float before[] = {2, 1, -0.0f};
  float state[] = {2, 1, -0.0f};
  add_sink(state, -kInf, 1);
  CHECK(std::memcmp(state, before, sizeof before) == 0);
}

TEST_CASE("seen: a value of Inf or NaN is in the rows that see it, and in no other") {
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16, DType::F64}) check_hidden_values(cpu_backend(), dtype);
}

TEST_CASE("seen: leaves that no query sees are not read: their pages cannot be") {
  // 64 leaves of two pages each; readable are the leaves of two sinks and of a window of 200 keys.
  const std::int64_t n_leaves = 64, d = 32, page = sysconf(_SC_PAGESIZE), leaf_bytes = kLeafKeys * d * 4;
  REQUIRE(leaf_bytes % page == 0);
  const std::int64_t N = n_leaves * kLeafKeys - 5, n_bytes = n_leaves * leaf_bytes;
  const SeenRule rule{.causal = true, .window = 200, .sinks = 66};
  const Seen any = rule.of_any(N, 3);
  void* const pages =
      mmap(nullptr, static_cast<std::size_t>(n_bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(pages != MAP_FAILED);
  std::byte* const memory = static_cast<std::byte*>(pages);  // of the keys, which are the values too
  std::int64_t n_readable = 0;
  for (std::int64_t leaf = 0; leaf < n_leaves; ++leaf) {
    if (any.touches(leaf * kLeafKeys, (leaf + 1) * kLeafKeys))
      ++n_readable;
    else
      REQUIRE(mprotect(memory + leaf * leaf_bytes, static_cast<std::size_t>(leaf_bytes), PROT_NONE) == 0);
  }
  CHECK(n_readable == 2 + 4);
  const std::vector<float> q(3 * static_cast<std::size_t>(d), 1.0f);
  const std::vector<std::int64_t> lengths{N};
  const auto view = [&](const void* data, std::int64_t n) {
    return TensorView::dense(static_cast<const std::byte*>(data), DType::F32, {1, 1, n, d});
  };
  for (const int p : {1, 3}) {
    for (const KeyRange& range : coarse_ranges(N, p, kLeafKeys)) {
      const AttentionShape shape{.heads = 1, .kv_heads = 1, .head_dim = d, .value_dim = d};
      const auto cache = cpu_backend(1).make_cache(shape, range);
      const TensorView rows = view(memory + range.begin * d * 4, range.size());
      cache->borrow({rows, rows, range.begin}, rows_in_use(lengths, range));
      const auto session = cache->open(0.1);
      for (int step = 0; step < 3; ++step) {
        const Forest<float>& states = session->decode({view(q.data(), 3), lengths, rule}).host();
        CHECK(states.subtrees() == cover(range.begin, range.end));
      }
    }
  }
  munmap(pages, static_cast<std::size_t>(n_bytes));
}

}  // namespace tree_attn::test::seen_test
