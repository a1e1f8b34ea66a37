// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Both orders of leaves on the CPU: caches that grow have the bits of fresh ones. test_plain.cpp has those of
/// ranges.
#include "reference/cpu/cpu_cache.hpp"
#include "reference/cpu/dealt_merges.hpp"
#include "reference/decode/backend.hpp"
#include "reference/decode/decode.hpp"
#include "tests/support/same_bits.hpp"
#include "tests/support/seen_cases.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

namespace tree_attn::test {
namespace {

int n_merges = 0;

}  // namespace

/// @tested{thm_1, Thm. 1}
TEST_CASE("dealt: m leaves that a query sees take m - 1 merges, however many leaves there are") {
  constexpr std::int64_t kLeaves = 5000, kDim = 3, kSize = state_size(packed_size(kDim));
  LeafKernel kernel = leaf_kernel();
  kernel.merge_states = [](const float* left, const float* right, float* out, std::int64_t n, std::int64_t d_v) {
    ++n_merges;
    leaf_kernel().merge_states(left, right, out, n, d_v);
  };
  std::mt19937 random(9250);
  for (const int p : {1, 3, 40}) {
    for (const KeyRange& range : dealt_ranges(p)) {
      const OwnedLeaves leaves(range, LeafOrder::kDealt);
      const std::int64_t n = leaves.n_keys(kLeaves * kLeafKeys) / kLeafKeys;
      DealtMerges merges(kernel, 1, n, kDim);
      merges.set_queries(1);
      const std::vector<float> elements = normal_elements(random, n * kSize);
      // The subtrees of the range, and merges, where `keys` are seen and all leaves but those of `kept` are empty.
      const auto merged = [&](const Seen& keys, const Seen& kept) {
        std::vector<float> subtrees(leaves.subtrees().size() * kSize);
        for (std::size_t subtree = 0; subtree < leaves.subtrees().size(); ++subtree)
          set_empty(subtrees.data() + subtree * kSize, kSize - kValues);
        std::vector<std::int64_t> order(static_cast<std::size_t>(n));
        std::iota(order.begin(), order.end(), 0), std::ranges::shuffle(order, random);
        n_merges = 0;
        for (const std::int64_t i : order) {
          float* const state = std::copy_n(elements.data() + i * kSize, kSize, merges.states(0, i)) - kSize;
          state[kShift] = std::round(8 * state[kShift]);
          const std::int64_t first = leaves.leaf(i) * kLeafKeys;
          if (!kept.touches(first, first + kLeafKeys)) set_empty(state, kSize - kValues);
          std::size_t subtree = 0;
          if (const float* top = merges.complete(0, leaves, i, keys, &subtree))
            std::copy_n(top, kSize, subtrees.data() + subtree * kSize);
        }
        return subtrees;
      };
      for (const Seen& keys :
           {Seen{0, 0, kLeaves * kLeafKeys}, Seen{0, 300000, 301000}, Seen{129, 319000, kLeaves * kLeafKeys - 5},
            Seen{100, 90, 400}, Seen{70, 4100, 290000}, Seen{1, 0, 0}, Seen{0, 2000, 2001},
            Seen{std::numeric_limits<std::int64_t>::max(), 200, 5000}}) {
        INFO(p << " ranks, range from " << range.begin << ", seen " << keys.sinks << ", " << keys.begin << " to "
               << keys.end);
        const std::vector<float> few = merged(keys, keys);
        const int n_few = n_merges;
        REQUIRE(same_bits(few, merged({0, 0, kLeaves * kLeafKeys}, keys)));
        int n_seen = 0;
        std::vector<bool> has_any(leaves.subtrees().size());
        for (std::int64_t i = 0; i < n; ++i) {
          const std::int64_t leaf = leaves.leaf(i);
          if (!keys.touches(leaf * kLeafKeys, (leaf + 1) * kLeafKeys)) continue;
          ++n_seen;
          for (std::size_t subtree = 0; subtree < has_any.size(); ++subtree)
            has_any[subtree] = has_any[subtree] || leaves.subtrees()[subtree].has(leaf);
        }
        CHECK(n_few == n_seen - std::ranges::count(has_any, true));
      }
    }
  }
}

TEST_CASE("dealt: a small window on a long cache has few chunks") {
  constexpr std::int64_t N = 80000;
  const auto workload = normal_workload(9260, {.heads = 1, .kv_heads = 1, .head_dim = 4, .value_dim = 4, .n_keys = N});
  for (const int p : {1, 2}) {
    const OwnedLeaves leaves(dealt_ranges(p)[0], LeafOrder::kDealt);
    const auto cache = cpu_backend(1).make_cache(workload->shape(), leaves, 1);
    fill(*cache, *workload, workload->lengths());
    const auto session = cache->open(workload->scale);
    const auto n_chunks = [&](const SeenRule& rule) {
      int n = 0;
      session->decode({workload->query(0), workload->lengths(), rule}, [&n] { ++n; });
      return n;
    };
    CHECK(n_chunks({}) >= 8);
    CHECK(n_chunks({.window = 200, .sinks = 70}) <= 4);  // sinks, what is between, and a window in one or two chunks
    CHECK(session->bytes_read() <= (5 + 2) * kLeafKeys * 32);
    const auto states = [&](const SeenRule& rule) {
      const auto all = session->decode({workload->query(0), workload->lengths(), rule}).host().states();
      return std::vector<float>(all.begin(), all.end());
    };
    // All keys are sinks. What a session leaves is overwritten, so this comes after the window.
    const std::vector<float> of_sinks = states({.window = 200, .sinks = std::numeric_limits<std::int64_t>::max()});
    CHECK(same_bits(of_sinks, states({})));
  }
}

TEST_CASE("dealt: a step that is broken off leaves nothing to the next one") {
  const auto workload = normal_workload(9270, {.n_keys = 9000});
  const OwnedLeaves leaves(dealt_ranges(1)[0], LeafOrder::kDealt);
  const Forest<float> whole = decode_range(cpu_backend(), *workload, leaves, {workload->query(0), workload->lengths()});
  const auto cache = cpu_backend(1).make_cache(workload->shape(), leaves, 1);
  fill(*cache, *workload, workload->lengths());
  const auto session = cache->open(workload->scale);
  for (const int most : {1, 3, 5}) {
    int n = 0;
    const Step step{workload->query(0), workload->lengths()};
    const auto stop = [&] { require<std::runtime_error>(++n < most, "stop"); };
    CHECK_THROWS_WITH(session->decode(step, stop), "stop");
    CHECK(same_bits(session->decode(step).host().states(), whole.states()));
  }
}

/// @tested{eq_7, eq. (7)}
TEST_CASE("growth: a cache and a session that grow key by key have the bits of fresh ones, in both orders") {
  constexpr std::int64_t N = 700;
  const auto workload =
      normal_workload(9400, {.batch = 2, .heads = 2, .kv_heads = 1, .head_dim = 6, .value_dim = 4, .n_keys = N});
  std::vector<OwnedLeaves> shards;
  for (const int p : {1, 3, 4}) {
    for (const KeyRange& range : dealt_ranges(p)) shards.emplace_back(range, LeafOrder::kDealt);
  }
  for (const std::int64_t begin : {0, 64, 192}) shards.emplace_back(KeyRange{begin, kOpenEnd});
  for (std::size_t i = 0; i < shards.size(); ++i) {
    // Every other cache begins with room that ends inside a leaf.
    const OwnedLeaves& leaves = shards[i];
    const auto cache = cpu_backend().make_cache(workload->shape(), leaves, i % 2 == 0 ? 90 : 0);
    const auto session = cache->open(workload->scale);
    std::int64_t n_grown = 0, n_moved = 0;
    for (std::int64_t n = 0; n <= N; ++n) {
      const std::vector<std::int64_t> lengths{n, n / 2};
      const std::int64_t before = cache->capacity();
      const std::byte* first = cache->longest() > 0 ? dynamic_cast<const CpuCache&>(*cache).leaf(0, 0, 0).k : nullptr;
      fill(*cache, *workload, lengths);
      n_grown += cache->capacity() != before;
      n_moved += first != nullptr && dynamic_cast<const CpuCache&>(*cache).leaf(0, 0, 0).k != first;
      if (n % 64 > 2 && n % 17 != 0) continue;
      const Forest<float>& grown = session->decode({workload->query(0), lengths}).host();
      const Forest<float> fresh = decode_range(cpu_backend(), *workload, leaves, {workload->query(0), lengths});
      REQUIRE(grown.subtrees() == fresh.subtrees());
      REQUIRE(same_bits(grown.states(), fresh.states()));
    }
    CHECK(n_grown <= 5);
    CHECK(n_grown >= 1);
    CHECK(n_moved == 0);
    CHECK(cache->capacity() <= 2 * std::max(cache->longest(), kLeafKeys) + kLeafKeys);
  }
}

}  // namespace tree_attn::test
