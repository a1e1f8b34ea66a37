// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Caches in pages on a device: the bits of a dense cache there, whatever the table (section 5.3).
#include "tree_attn/gpu/backend/backends.hpp"
#include "tree_attn/gpu/backend/one_shot_session.hpp"
#include "tree_attn/tests/support/device_params.hpp"
#include "tree_attn/tests/support/paged_pair.hpp"
#include "tree_attn/tests/support/sanitized.hpp"
#include "tree_attn/tests/support/sweep.hpp"

namespace tree_attn::test {

/// @tested{thm_1, Thm. 1}
TEST_CASE("pages on a device: random appends, cuts and shared prefixes have the bits of a dense cache") {
  const int n_cases = takes_all_cases() ? 400 : kIsSanitized ? 10 : 20;
  int n_refused = 0, n_copied = 0, n_steps = 0, n_blind = 0;
  std::int64_t n_rows = 0;
  std::mt19937 random(4810);
  const auto draw = [&](std::int64_t n) { return std::uniform_int_distribution<std::int64_t>(0, n)(random); };
  const std::array shards{OwnedLeaves(KeyRange{0, kOpenEnd}), OwnedLeaves(KeyRange{64, 512}),
                          OwnedLeaves(dealt_ranges(1)[0], LeafOrder::kDealt),
                          OwnedLeaves(dealt_ranges(3)[1], LeafOrder::kDealt)};
  for (int i = 0; i < n_cases; ++i) {
    CAPTURE(i);
    const DType dtype = i % 2 == 0 ? DType::BF16 : DType::F32;
    const AttentionShape shape{
        dtype, dtype, 1 + draw(2), 4, 2, 1 + draw(2), i % 20 == 4 ? 264 : 16, 8, i % 3 == 0 || i % 20 == 4};
    const bool has_window = draw(1) == 0;
    const PageRule rule{5 + draw(15), has_window ? 1 + draw(150) : 0, has_window ? draw(1) * draw(70) : 0};
    PagedPair pair(device::backend(), shape, shards[static_cast<std::size_t>(i) % shards.size()], rule);
    const std::int64_t end = pair.dense->leaves().range().end;
    operate(pair, 20, std::min<std::int64_t>(end, 700), {draw(1) == 0, rule.window, rule.sinks}, draw);
    if (has_window) pair.check({.window = 700});

    // All rows that are held, as the ring sends them.
    const std::int64_t n = pair.paged->longest();
    std::array<std::vector<std::byte>, 2> memory;
    std::array<Shard, 2> rows;
    for (const std::size_t j : {0, 1}) {
      const auto take = [&](std::size_t n_bytes) { return (memory[j].assign(n_bytes, std::byte{}), memory[j].data()); };
      rows[j] = (j == 0 ? *pair.dense : *pair.paged).shard(n, take);
    }
    for (std::int64_t entry = 0; entry < shape.batch && rule.window == 0; ++entry) {
      const std::int64_t held = pair.paged->lengths()[static_cast<std::size_t>(entry)];
      n_rows += held;
      for (const auto& part : {&Shard::k, &Shard::v})
        CHECK(copy_of((rows[0].*part).entry(entry).positions(0, held)).bytes ==
              copy_of((rows[1].*part).entry(entry).positions(0, held)).bytes);
    }
    n_refused += pair.n_refused, n_copied += pair.n_copied, n_steps += pair.n_steps, n_blind += pair.n_blind;
  }
  CHECK(n_refused > 0);
  CHECK(n_copied > n_cases / 4);
  CHECK(n_steps > 4 * n_cases);
  CHECK(n_blind > n_cases / 10);
  CHECK(n_rows > 50 * n_cases);
}

TEST_CASE("pages on a device: a long sequence in the pages of a window has the bits of a dense cache") {
  for (const auto& [range, order] : {std::pair{KeyRange{0, kOpenEnd}, LeafOrder::kContiguous},
                                     {dealt_ranges(1)[0], LeafOrder::kDealt},
                                     {dealt_ranges(2)[1], LeafOrder::kDealt}}) {
    for (const DType dtype : {DType::F32, DType::BF16}) {
      PagedPair pair(device::backend(), {dtype, dtype, 1, 2, 1, 1, 8, 8}, OwnedLeaves(range, order),
                     {.n_pages = 5, .window = 100, .sinks = 3});
      // A key that waits for the next step, then so many that its page is given back.
      while (pair.length(0) < 9000) {
        pair.append(0, 1), pair.append(0, 299);
        if (pair.length(0) % 1500 == 0) pair.check({.window = 100, .sinks = 3});
      }
      CHECK(pair.n_steps == 6);
      CHECK(pair.n_refused == 0);
    }
  }
}

TEST_CASE("pages on a device: after a reset the lists are those of the new table") {
  PagedPair pair(device::backend(), {DType::BF16, DType::BF16, 2, 2, 1, 1, 8, 8}, KeyRange{0, 1000}, {.n_pages = 8});
  pair.append(1, 64), pair.append(0, 64);
  [[maybe_unused]] const std::int64_t copied = device::traffic().bytes_bulk;
  pair.check({});
#if !defined(TREE_ATTN_FOR_CUDA)
  // Tensor maps bring pages as they bring rows one after the other: two leaves of both caches.
  if (device::device().major >= 9) CHECK(device::traffic().bytes_bulk - copied == 2 * 2 * kLeafKeys * (8 + 8) * 2);
#endif
  pair.reset();
  pair.append(1, 128), pair.append(0, 64), pair.check({});
  CHECK(pair.n_steps == 2);
}

TEST_CASE("pages on a device: one-shot refuses a cache in pages in one line") {
  const auto cache = device::backend().make_cache({}, {0, 1000});
  cache->use_pages({.n_pages = 4});
  CHECK_THROWS_WITH_AS(device::open_one_shot(*cache, 1, {}),
                       "open_one_shot: its kernels read rows one after the other, but the cache is in pages",
                       std::invalid_argument);
}

}  // namespace tree_attn::test
