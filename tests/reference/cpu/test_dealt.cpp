// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The dealt order on the CPU: the states of every range of slots are those of the canonical tree, and caches that
/// grow have the bits of fresh ones.
#include "tree_attn/reference/cpu/cpu_cache.hpp"
#include "tree_attn/reference/decode/backend.hpp"
#include "tree_attn/reference/decode/decode.hpp"
#include "tree_attn/tests/support/canonical_tree.hpp"

#include <doctest/doctest.h>

#include <algorithm>

namespace tree_attn::test {
namespace {

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

/// The states of one rank of p.
Forest<float> decode_rank(Workload& workload, const TensorView& q, double scale, const OwnedLeaves& leaves,
                          std::span<const std::int64_t> lengths, int n_threads = 1) {
  const auto cache = cpu_backend(n_threads).make_cache(workload.shape(), leaves, 1);
  fill(*cache, workload, lengths);
  return std::move(cache->open(scale)->decode({q, lengths}).host());
}

/// The output of p ranks: their forests, joined.
DecodeOutput decode_ranks(TensorWorkload& workload, int p, int n_threads = 1) {
  const std::int64_t n_rows = workload.shape().n_rows(), d_v = workload.shape().value_dim;
  Forest<float> joined(n_rows, d_v);
  for (const KeyRange& range : dealt_ranges(p)) {
    const Forest<float> part = decode_rank(workload, workload.query(0), workload.scale,
                                           OwnedLeaves(range, LeafOrder::kDealt), workload.lengths(), n_threads);
    joined.append(part.subtrees(), part.states().data());
  }
  return finish_rows(joined.fold(), n_rows, d_v);
}

}  // namespace

/// @tested{thm_1, Thm. 1}
TEST_CASE("dealt: the states of a rank are the values of its subtrees in the tree over slots") {
  for (const std::int64_t n : {0, 1, 63, 64, 65, 130, 1000, 1600}) {
    const auto workload = normal_workload(
        9100, {.heads = 4, .kv_heads = 2, .head_dim = 8, .value_dim = 5, .n_queries = 2, .n_keys = n, .dtype = DType::BF16});
    const CanonicalTree tree(cpu_backend(), *workload, LeafOrder::kDealt, n);
    for (const int p : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 33}) {
      for (const KeyRange& range : dealt_ranges(p)) {
        INFO(n << " keys, " << p << " ranks, slots from " << range.begin / kLeafKeys);
        const OwnedLeaves leaves(range, LeafOrder::kDealt);
        const Forest<float> forest =
            decode_rank(*workload, workload->query(0), workload->scale, leaves, workload->lengths());
        REQUIRE(forest.subtrees() == cover(range.begin, range.end));
        const std::size_t size = static_cast<std::size_t>(forest.block_size());
        for (std::size_t i = 0; i < forest.subtrees().size(); ++i)
          REQUIRE(same_bits(forest.states().subspan(i * size, size), tree.value(forest.subtrees()[i])));
      }
    }
  }
}

TEST_CASE("dealt: more than 4096 leaves, where leaves with the same low bits are siblings") {
  const auto workload =
      normal_workload(9150, {.heads = 1, .kv_heads = 1, .head_dim = 2, .value_dim = 1, .n_keys = 20000 * 64});
  for (const std::int64_t n_leaves : {4097, 9000, 12288, 20000}) {
    const std::int64_t n = n_leaves * kLeafKeys - 5;
    const CanonicalTree tree(cpu_backend(), *workload, LeafOrder::kDealt, n);
    for (const int p : {1, 3, 4}) {
      for (const KeyRange& range : dealt_ranges(p)) {
        const Forest<float> forest = decode_rank(*workload, workload->query(0), workload->scale,
                                                 OwnedLeaves(range, LeafOrder::kDealt), std::vector<std::int64_t>{n});
        for (std::size_t i = 0; i < forest.subtrees().size(); ++i)
          REQUIRE(same_bits(forest.states().subspan(i * 3, 3), tree.value(forest.subtrees()[i])));
      }
    }
  }
}

TEST_CASE("dealt: any number of ranks and threads, and any batch, gives the bits of one rank") {
  for (const DType dtype : {DType::F32, DType::F16}) {
    const std::vector<std::int64_t> lengths{3000, 1, 0, 700};
    const auto workload = normal_workload(
        9200, {.batch = 4, .heads = 4, .kv_heads = 2, .head_dim = 64, .value_dim = 40, .n_keys = 3000, .dtype = dtype},
        lengths);
    const DecodeOutput want = decode_ranks(*workload, 1);
    for (const int p : {2, 3, 4, 7, 8, 100}) {
      const DecodeOutput output = decode_ranks(*workload, p, 1 + p % 3);
      CHECK(same_bits(output.out, want.out));
      CHECK(same_bits(output.lse, want.lse));
    }
    for (int repetition = 0; repetition < 10; ++repetition) CHECK(same_bits(decode_ranks(*workload, 1, 3).out, want.out));
    for (std::int64_t i = 0; i < 4; ++i) {
      const auto entry = entry_of(*workload, i);
      const DecodeOutput alone = decode_ranks(*entry, 3);
      const std::size_t n_rows = alone.lse.size(), begin = static_cast<std::size_t>(i) * n_rows;
      CHECK(same_bits(std::span(want.lse).subspan(begin, n_rows), alone.lse));
      CHECK(same_bits(std::span(want.out).subspan(begin * 40, n_rows * 40), alone.out));
    }
    // Threads on different heads at the same time.
    const auto short_heads = normal_workload(
        9250, {.batch = 8, .heads = 8, .kv_heads = 8, .head_dim = 64, .value_dim = 64, .n_keys = 190, .dtype = dtype});
    const DecodeOutput by_one = decode_ranks(*short_heads, 1);
    for (int repetition = 0; repetition < 20; ++repetition)
      CHECK(same_bits(decode_ranks(*short_heads, 1, 3).out, by_one.out));
    // The only key of a sequence gives its value.
    const std::vector<double> v = row_of(workload->v(), 1, 0, 0);
    for (std::size_t j = 0; j < 40; ++j) CHECK(std::abs(want.out[4 * 40 + j] - v[j]) <= 0x1p-23 * std::abs(v[j]));
  }
}

TEST_CASE("dealt: another order than contiguous has other bits, and both are the attention") {
  const auto workload = normal_workload(9300, {.n_keys = 3000});
  const DecodeOutput dealt = decode_ranks(*workload, 4);
  Forest<float> forest = decode_shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
  const DecodeOutput contiguous = finish_rows(forest.fold(), 4, 16);
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

TEST_CASE("growth: an open range has the bits of a closed one, and few subtrees") {
  const auto workload = normal_workload(9500, {.n_keys = 1500});
  for (const std::int64_t n : {0, 1, 64, 500, 512, 513, 1500}) {
    const std::vector<std::int64_t> lengths{n};
    const DecodeOutput want = [&] {
      Forest<float> forest = decode_rank(*workload, workload->query(0), workload->scale, KeyRange{0, 1500}, lengths);
      return finish_rows(forest.fold(), 4, 16);
    }();
    for (const std::int64_t cut : {0, 64, 448}) {
      Forest<float> joined = decode_rank(*workload, workload->query(0), workload->scale, KeyRange{0, cut}, lengths);
      const Forest<float> open =
          decode_rank(*workload, workload->query(0), workload->scale, KeyRange{cut, kOpenEnd}, lengths);
      CHECK(open.subtrees() == cover(cut, closed({cut, kOpenEnd}, n).end));
      CHECK(open.subtrees().size() <= 6);
      joined.append(open.subtrees(), open.states().data());
      const DecodeOutput output = finish_rows(joined.fold(), 4, 16);
      CHECK(same_bits(output.out, want.out));
      CHECK(same_bits(output.lse, want.lse));
    }
  }
  CHECK(closed({64, kOpenEnd}, 0).end == 64);
  CHECK(closed({192, kOpenEnd}, 190).end == 192);
  CHECK(closed({64, kOpenEnd}, 65).end == 128);
  CHECK(closed({64, kOpenEnd}, 128).end == 128);
  CHECK(closed({64, 70}, 1000).end == 70);
}

TEST_CASE("dealt: the memory that is predicted for a session is what it holds") {
  for (const int n_threads : {1, 3}) {
    for (const int p : {1, 3}) {
      for (const std::int64_t capacity : {0, 64, 1000}) {
        const AttentionShape shape{.batch = 2, .heads = 6, .kv_heads = 2, .n_queries = 2, .head_dim = 40, .value_dim = 24};
        const OwnedLeaves leaves(dealt_ranges(p)[0], LeafOrder::kDealt);
        const auto cache = cpu_backend(n_threads).make_cache(shape, leaves, capacity);
        const MemoryNeed need = cpu_backend(n_threads).memory(shape, leaves, capacity, capacity);
        CHECK(need.session == static_cast<double>(cache->open(1)->bytes()));
        CHECK(need.cache == static_cast<double>(cache->bytes()));
      }
    }
  }
}

}  // namespace tree_attn::test
