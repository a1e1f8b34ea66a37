// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Both orders of leaves on the CPU: caches that grow have the bits of fresh ones. test_plain.cpp has those of
/// ranges.
#include "tree_attn/reference/cpu/cpu_cache.hpp"
#include "tree_attn/reference/decode/backend.hpp"
#include "tree_attn/reference/decode/decode.hpp"
#include "tree_attn/tests/support/same_bits.hpp"
#include "tree_attn/tests/support/tensor_workload.hpp"

#include <doctest/doctest.h>

#include <algorithm>

namespace tree_attn::test {
namespace {

/// The states of one rank of p.
Forest<float> decode_rank(Workload& workload, const TensorView& q, double scale, const OwnedLeaves& leaves,
                          std::span<const std::int64_t> lengths) {
  const auto cache = cpu_backend().make_cache(workload.shape(), leaves, 1);
  fill(*cache, workload, lengths);
  return std::move(cache->open(scale)->decode({q, lengths}).host());
}

}  // namespace

TEST_CASE("dealt: another order than contiguous has other bits, and both are the attention") {
  const auto workload = normal_workload(9300, {.n_keys = 3000});
  const auto decode = [&](const OwnedLeaves& leaves) {
    Forest<float> forest = decode_rank(*workload, workload->query(0), workload->scale, leaves, workload->lengths());
    return finish_rows(forest.fold(), 4, 16);
  };
  const DecodeOutput dealt = decode(OwnedLeaves(dealt_ranges(1)[0], LeafOrder::kDealt)),
                     contiguous = decode(KeyRange{0, 3000});
  CHECK(!same_bits(dealt.out, contiguous.out));
  for (std::size_t i = 0; i < dealt.out.size(); ++i) CHECK(std::abs(dealt.out[i] - contiguous.out[i]) < 1e-6f);
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
  for (const std::int64_t begin : {0, 64, 192, 37}) shards.emplace_back(KeyRange{begin, kOpenEnd});
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
      const Forest<float> fresh = decode_rank(*workload, workload->query(0), workload->scale, leaves, lengths);
      REQUIRE(grown.subtrees() == fresh.subtrees());
      REQUIRE(same_bits(grown.states(), fresh.states()));
    }
    CHECK(n_grown <= 5);
    CHECK(n_grown >= 1);
    CHECK(n_moved <= (leaves.range().begin % kLeafKeys == 0 ? 0 : 1));
    CHECK(cache->capacity() <= 2 * std::max(cache->longest(), kLeafKeys) + kLeafKeys);
  }
}

}  // namespace tree_attn::test
