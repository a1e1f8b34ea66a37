// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Caches in pages: the bits of a dense cache whatever the table, and pages that are counted.
#include "tests/support/message.hpp"
#include "tests/support/model_backend.hpp"
#include "tests/support/paged_pair.hpp"
#include "tests/support/sweep.hpp"
#include "tests/support/tensor_workload.hpp"

#include <doctest/doctest.h>

namespace tree_attn::test {

/// @tested{thm_1, Thm. 1}
TEST_CASE("pages: random appends, cuts, shared prefixes and resets to other shards have the bits of a dense cache") {
  const int n_cases = takes_all_cases() ? 5000 : 400;
  int n_refused = 0, n_copied = 0, n_steps = 0, n_blind = 0, n_saved = 0;
  std::vector<OwnedLeaves> shards{KeyRange{0, kOpenEnd}, KeyRange{64, 512}, KeyRange{192, 300}};
  for (const int p : {1, 3, 4})
    for (const KeyRange& range : dealt_ranges(p)) shards.emplace_back(range, LeafOrder::kDealt);
  std::mt19937 random(4800);
  const auto draw = [&](std::int64_t n) { return std::uniform_int_distribution<std::int64_t>(0, n)(random); };
  for (int i = 0; i < n_cases; ++i) {
    CAPTURE(i);
    const DType dtype = std::array{DType::F32, DType::BF16, DType::F16, DType::F8_E4M3}[static_cast<std::size_t>(draw(3))];
    const std::int64_t batch = 1 + draw(3), l = 1 + draw(3);
    const AttentionShape shape{dtype, dtype, batch, 4, 2, 8, 5, i % 3 == 0};
    const bool has_window = draw(1) == 0;
    const PageRule rule{draw(40), has_window ? 1 + draw(200) : 0, has_window ? draw(1) * draw(140) : 0, l};
    PagedPair pair(cpu_backend(1 + i % 3), shape, shards[static_cast<std::size_t>(i) % shards.size()], rule);
    const SeenRule seen{draw(1) == 0, rule.window == 0 ? draw(1) * draw(300) : rule.window - draw(3) % rule.window,
                        rule.window == 0 ? draw(100) : rule.sinks};
    operate(pair, 40, 1200, seen, shards, draw);
    n_refused += pair.n_refused, n_copied += pair.n_copied, n_steps += pair.n_steps, n_blind += pair.n_blind;
    n_saved += pair.n_saved;
  }
  CHECK(n_refused > n_cases / 4);
  CHECK(n_copied > n_cases / 2);
  CHECK(n_steps > 4 * n_cases);
  CHECK(n_blind > n_cases / 20);
  CHECK(n_saved > n_cases / 2);
}

TEST_CASE("pages: a million keys in the pages of a window and its sinks have the bits of a dense cache") {
  constexpr std::int64_t kWindow = 1000, kSinks = 4, kAtOnce = 997, kPages = 1 + (kWindow + 1) / kLeafKeys + 2;
  const AttentionShape shape{DType::F32, DType::F32, 1, 2, 1, 4, 4};
  std::mt19937 random(4802);
  const Tensor rows = normal_tensor(random, {2, 1, kAtOnce, 4}), q = normal_tensor(random, {1, 2, 1, 4});
  for (const LeafOrder order : {LeafOrder::kContiguous, LeafOrder::kDealt}) {
    const KeyRange range = order == LeafOrder::kDealt ? dealt_ranges(1)[0] : KeyRange{0, kOpenEnd};
    const auto dense = cpu_backend().make_cache(shape, OwnedLeaves(range, order), 1 << 20),
               paged = cpu_backend().make_cache(shape, OwnedLeaves(range, order), 0);
    paged->use_pages({.n_pages = kPages, .window = kWindow, .sinks = kSinks});
    const auto steps_of_dense = dense->open(1), steps_of_paged = paged->open(1);
    std::int64_t n_most = 0;
    for (std::int64_t n = kAtOnce; n < 1'001'000; n += kAtOnce) {
      for (KvCache* cache : {dense.get(), paged.get()}) {
        for (std::int64_t done = 0, m = n % 2 == 0 ? 1 : kAtOnce; done < kAtOnce; done += m, m = kAtOnce - done)
          cache->append(0, rows.view().entry(0).positions(done, done + m), rows.view().entry(1).positions(done, done + m));
      }
      n_most = std::max(n_most, kPages - paged->pages()->n_free());
      if (n / kAtOnce % 50 > 1) continue;
      const std::array lengths{n};
      const Step step{q.view(), lengths, {.window = kWindow, .sinks = kSinks}};
      REQUIRE(same_bits(steps_of_paged->decode(step).host(), steps_of_dense->decode(step).host()));
    }
    CHECK(paged->lengths()[0] > 1'000'000);
    CHECK(n_most == kPages);
    CHECK(paged->bytes() == kPages * kLeafKeys * shape.bytes_per_position());
  }
}

TEST_CASE("pages: a prefix that entries share is read once for all of them, with equal bits") {
  constexpr std::int64_t kBatch = 5, kPrefix = 4096 + 3 * 64, kOwn = 100;
  for (const DType dtype : {DType::F32, DType::BF16, DType::F8_E4M3}) {
    for (const std::int64_t l : {1, 3}) {
      for (const LeafOrder order : {LeafOrder::kContiguous, LeafOrder::kDealt}) {
        INFO(name_of(order) << ", l " << l);
        const AttentionShape shape{dtype, dtype, kBatch, 6, 2, 40, 24};
        const KeyRange range = order == LeafOrder::kDealt ? dealt_ranges(1)[0] : KeyRange{0, kOpenEnd};
        PagedPair pair(cpu_backend(3), shape, OwnedLeaves(range, order), {.n_pages = 80, .most_queries = l});
        const std::int64_t of_row = shape.bytes_per_position() / kBatch;
        pair.append(0, kPrefix);
        for (std::int64_t i = 1; i < kBatch - 1; ++i) pair.share(0, i, kPrefix);
        for (std::int64_t i = 0; i < kBatch - 1; ++i) pair.append(i, kOwn);
        pair.append(kBatch - 1, kOwn);
        pair.check({.causal = true});
        CHECK(pair.bytes_of_dense() == ((kBatch - 1) * kPrefix + kBatch * kOwn) * of_row);
        CHECK(pair.bytes_of_paged() == (kPrefix + kBatch * kOwn) * of_row);

        // The first keys of the window are those of each: the windows of shorter entries begin earlier.
        pair.truncate(1, kPrefix), pair.append(1, kOwn - 30);
        pair.check({.causal = true, .window = 2000, .sinks = 4});
        CHECK(pair.bytes_of_paged() < pair.bytes_of_dense() * 3 / 4);
      }
    }
  }
}

TEST_CASE("pages: rows that a cache had borrowed before are not those of its pages") {
  const AttentionShape shape{DType::F32, DType::F32, 2, 2, 1, 4, 4};
  const auto cache = cpu_backend().make_cache(shape, {0, 1000});
  std::mt19937 random(4805);
  const Tensor borrowed = normal_tensor(random, {2, 1, 100, 4}), rows = normal_tensor(random, {1, 1, 64, 4});
  cache->borrow({borrowed.view(), borrowed.view()}, std::vector<std::int64_t>{100, 100});
  for (const std::int64_t entry : {0, 1}) cache->truncate(entry, 0);
  cache->use_pages({.n_pages = 4});
  cache->append(0, rows.view(), rows.view()), cache->share(0, 1, 64);
  std::vector<std::byte> memory;
  const Shard held = cache->shard(64, [&](std::size_t n) { return (memory.resize(n), memory.data()); });
  for (const std::int64_t entry : {0, 1}) CHECK(copy_of(held.k.entry(entry)).bytes == rows.bytes);
}

TEST_CASE("pages: rows of F8 are stored with the scales of their own entry") {
  const AttentionShape shape{DType::F8_E4M3, DType::F8_E4M3, 2, 2, 1, 8, 8};
  std::mt19937 random(4804);
  const Tensor rows = normal_tensor(random, {1, 1, 100, 8}), q = normal_tensor(random, {2, 2, 1, 8}, DType::F8_E4M3);
  std::vector<Forest<float>> states;
  for (const bool has_pages : {false, true}) {
    const auto cache = cpu_backend().make_cache(shape, {0, 1000});
    cache->set_scales({{1, 0.25f}, {3, 0.5f}});
    if (has_pages) cache->use_pages({.n_pages = 4});
    for (const std::int64_t entry : {0, 1}) cache->append(entry, rows, rows);
    states.push_back(std::move(cache->open(0.5)->decode({q, std::vector<std::int64_t>{100, 100}}).host()));
    if (!has_pages) continue;
    cache->truncate(1, 0);
    CHECK_INVALID(cache->share(0, 1, 10), "KvCache::share: batch entries 0 and 1 have other scales");
  }
  CHECK(same_bits(states[0], states[1]));
}

TEST_CASE("pages: the version of a list changes with the list alone") {
  PageTable table({.n_pages = 9}, {.batch = 2}, KeyRange{0, 1000});
  const auto changes = [&](const auto& change, std::int64_t entry = 0) {
    const std::int64_t before = table.version(entry), other = table.version(1 - entry);
    change();
    CHECK(table.version(1 - entry) == other);
    return table.version(entry) != before;
  };
  CHECK(changes([&] { table.extend(0, 0, 1); }));
  CHECK_FALSE(changes([&] { table.extend(0, 1, 64); }));
  CHECK(changes([&] { table.extend(0, 64, 65); }));
  CHECK(changes([&] { table.share(0, 1, 65); }, 1));
  CHECK_FALSE(changes([&] { table.check_room(0, 65, 66); }));
  CHECK(changes([&] { table.extend(0, 65, 66); }));  // a page of its own
  CHECK(changes([&] { table.cut(1, 0); }, 1));
  CHECK_THROWS_AS(table.extend(1, 0, 640), std::out_of_range);
  const std::int64_t before = table.version(0);
  table.reset(KeyRange{64, 500});
  CHECK((table.version(0) != before && table.version(0) != table.version(1)));
  CHECK(table.n_free() == 9);
}

TEST_CASE("pages: what does not fit or is gone is refused in one line with the values, and changes nothing") {
  const AttentionShape shape{DType::F32, DType::F32, 3, 2, 1, 4, 4};
  const auto cache = cpu_backend().make_cache(shape, {0, 1000});
  CHECK_THROWS_WITH_AS(cache->share(0, 1, 0), "KvCache::share: the cache is not in pages", std::logic_error);
  const auto dense = model_backend().make_cache(shape, {0, 1000});
  CHECK_THROWS_WITH_AS(dense->use_pages({.n_pages = 4}), "KvCache::use_pages: this cache takes none", std::logic_error);
  CHECK(dense->pages() == nullptr);
  CHECK_INVALID(cache->use_pages({.n_pages = -1}), "-1 pages, a window of 0 keys and 0 sinks; 0 to 2^31 - 1 pages");
  for (const PageRule& rule : {PageRule{1, -1, 0}, {1, 0, -1}, {std::int64_t{1} << 31, 0, 0}})
    CHECK_INVALID(cache->use_pages(rule), "; 0 to 2^31 - 1 pages, and none is negative");
  std::mt19937 random(4801);
  const auto append = [&](std::int64_t entry, std::int64_t n) {
    const Tensor rows = normal_tensor(random, {1, 1, n, 4}, DType::F32);
    cache->append(entry, rows.view(), rows.view());
  };
  cache->use_pages({.n_pages = 4, .window = 100, .sinks = 1});
  CHECK(cache->bytes() == 4 * 64 * 2 * 16);
  append(0, 70), append(1, 64);
  CHECK(cache->pages()->n_free() == 1);
  CHECK_OUT_OF_RANGE(append(2, 65), "KvCache::append: 65 more positions of batch entry 2 need 2 pages, but 1 of 4 are free");
  CHECK_OUT_OF_RANGE(cache->share(0, 1, 64), "KvCache::share: batch entry 1 holds 64 positions, not none");
  CHECK_OUT_OF_RANGE(cache->share(0, 2, 71), "KvCache::share: batch entry 0 holds 70 positions, not 71");
  CHECK_OUT_OF_RANGE(cache->share(0, 3, 1), "KvCache::share: batch entry 3 of a batch of 3");
  CHECK_THROWS_WITH_AS(cache->use_pages({.n_pages = 9}), "KvCache::use_pages: the cache holds rows", std::logic_error);
  const Tensor rows = normal_tensor(random, {3, 1, 9, 4}, DType::F32);
  CHECK_THROWS_WITH_AS(cache->borrow({rows.view(), rows.view()}, std::vector<std::int64_t>{9, 9, 9}),
                       "KvCache::borrow: the cache is in pages, which take rows by append()", std::logic_error);
  CHECK(std::ranges::equal(cache->lengths(), std::vector<std::int64_t>{70, 64, 0}));
  CHECK(cache->pages()->n_free() == 1);

  // The keys from 64 to 256 are gone, which neither a step may see nor a key may follow.
  append(0, 300);
  CHECK_OUT_OF_RANGE(cache->truncate(0, 130), "position 130 of batch entry 0 follows keys that were given back");
  const auto session = cache->open(1);
  const Tensor q = normal_tensor(random, {3, 2, 1, 4}, DType::F32);
  CHECK_THROWS_WITH_AS(session->decode({q.view(), std::vector<std::int64_t>{370, 0, 0}, {.window = 200, .sinks = 1}}),
                       "DecodeSession::decode: batch entry 0 sees keys of the positions [64, 256), whose pages have been "
                       "given back: the cache is for a window of 100 keys and 1 sinks",
                       std::invalid_argument);
  CHECK_NOTHROW(session->decode({q.view(), std::vector<std::int64_t>{370, 0, 0}, {.window = 100, .sinks = 1}}));
  cache->reset(KeyRange{64, 500});
  CHECK(cache->pages()->n_free() == 4);
}

}  // namespace tree_attn::test
