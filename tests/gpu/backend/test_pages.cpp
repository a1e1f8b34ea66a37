// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Caches in pages on a device: the bits of a dense cache there, whatever the table (section 5.3).
#include "gpu/backend/backends.hpp"
#include "gpu/backend/device_steps.hpp"
#include "gpu/backend/one_shot_session.hpp"
#include "gpu/backend/shared_prefix.hpp"
#include "tests/support/device_params.hpp"
#include "tests/support/paged_pair.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/sweep.hpp"

namespace tree_attn::test {
namespace {

/// Until the end of a scope every shared prefix is read once, however little that saves.
struct LeastSaved {
  std::int64_t before = std::exchange(device::least_bytes_saved, 0);
  ~LeastSaved() { device::least_bytes_saved = before; }
};

}  // namespace

/// @tested{thm_1, Thm. 1}
TEST_CASE("pages on a device: random appends, cuts, shared prefixes and resets have the bits of a dense cache") {
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
    const std::int64_t batch = 1 + draw(2), l = 1 + draw(2);
    const AttentionShape shape{dtype, dtype, batch, 4, 2, i % 20 == 4 ? 264 : 16, 8, i % 3 == 0 || i % 20 == 4};
    const bool has_window = draw(1) == 0;
    const PageRule rule{5 + draw(15), has_window ? 1 + draw(150) : 0, has_window ? draw(1) * draw(70) : 0, l};
    PagedPair pair(device::backend(), shape, shards[static_cast<std::size_t>(i) % shards.size()], rule);
    operate(pair, 20, 700, {draw(1) == 0, rule.window, rule.sinks}, shards, draw);
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
  if (n_cases >= 20) CHECK(n_refused > 0);
  CHECK(n_copied > n_cases / 4);
  CHECK(n_steps > 4 * n_cases);
  CHECK(n_blind > n_cases / 10);
  CHECK(n_rows > 50 * n_cases);
}

TEST_CASE("pages on a device: a prefix that all entries share is read once, with the bits of a dense cache") {
  const LeastSaved none;
  std::mt19937 random(4811);
  const auto draw = [&](std::int64_t n) { return std::uniform_int_distribution<std::int64_t>(0, n)(random); };
  const int n_cases = takes_all_cases() ? 200 : kIsSanitized ? 6 : 16;
  int n_together = 0, n_steps = 0;
  for (int i = 0; i < n_cases; ++i) {
    CAPTURE(i);
    const DType dtype = std::array{DType::F32, DType::BF16, DType::F16, DType::F8_E4M3}[static_cast<std::size_t>(i) % 4];
    const std::int64_t heads = 1 + draw(1), group = 1 + draw(4), d = i % 8 == 5 ? 264 : 16;
    const std::int64_t batch = 2 + draw(3), l = 1 + draw(2);
    const AttentionShape shape{dtype, dtype, batch, heads * group, heads, d, 8, i % 3 == 0};
    const KeyRange range = i % 4 == 3 ? KeyRange{64, 1024} : i % 4 == 2 ? KeyRange{192, kOpenEnd} : KeyRange{0, kOpenEnd};
    const bool has_scales = dtype == DType::F8_E4M3;
    PagedPair pair(device::backend(), shape, range, {.n_pages = 60, .most_queries = l});
    const SeenRule rule{.causal = draw(1) == 0};
    pair.append(0, range.begin + 1 + draw(500));
    for (std::int64_t entry = 1; entry < shape.batch; ++entry)
      pair.share(0, entry, i % 5 == 4 ? draw(pair.length(0)) : pair.length(0));
    pair.check(rule);
    for (int step = 0; step < 6; ++step) {
      for (std::int64_t entry = 0; entry < shape.batch; ++entry) pair.append(entry, 1 + (step == 3 ? draw(100) : 0));
      pair.check(rule);
    }
    // One of the others leaves, and begins anew.
    pair.truncate(1, range.begin), pair.check(rule);
    pair.append(1, 130), pair.check(rule), pair.check(rule);
    pair.share(0, 1, pair.length(0)), pair.check(rule);
    n_together += pair.n_together, n_steps += pair.n_steps;
    if (has_scales) CHECK(pair.n_together == 0);
  }
  CHECK(n_together > 3 * n_cases);
  CHECK(n_steps == 11 * n_cases);

  // The first of two queries does not see the last key of the second leaf.
  PagedPair pair(device::backend(), {DType::F32, DType::F32, 2, 2, 1, 16, 8}, KeyRange{0, 1000},
                 {.n_pages = 8, .most_queries = 2});
  pair.append(0, 128), pair.share(0, 1, 128), pair.check({.causal = true});
  CHECK(pair.n_together == 1);
  // Under a window it is read for each entry, and after that once again.
  pair.check({.window = 100}), pair.check({.causal = true}), pair.check({.causal = true});
  CHECK(pair.n_together == 3);

  // An entry gets other pages, and the shortest one stays as it is.
  PagedPair three(device::backend(), {DType::F32, DType::F32, 3, 3, 1, 16, 8}, KeyRange{0, 1000}, {.n_pages = 12});
  three.append(0, 128), three.share(0, 1, 128), three.share(0, 2, 128), three.check({});
  three.truncate(1, 0), three.append(1, 200), three.check({});
  CHECK(three.n_together == 1);
}

TEST_CASE("pages on a device: a step with messages reads a shared prefix for each entry") {
  const LeastSaved none;
  PagedPair pair(device::backend(), {DType::BF16, DType::BF16, 2, 4, 2, 16, 8}, KeyRange{0, kOpenEnd}, {.n_pages = 20});
  pair.append(0, 300), pair.share(0, 1, 300), pair.append(0, 1), pair.append(1, 5);
  const std::unique_ptr<DecodeSession> session = pair.paged->open(0.25);
  auto& steps = dynamic_cast<DeviceSteps&>(*session);
  struct NoMessages final : StepEnd {
    void queue(const float*) override { ++n_queued; }
    std::uint64_t graph() const override { return 1; }
    int n_queued = 0;
  } end;
  std::mt19937 random(4812);
  const Tensor q = normal_tensor(random, {2, 4, 1, 16}, DType::BF16);
  const auto decode = [&](bool goes_on) {
    const std::vector<std::int64_t> lengths{pair.length(0), pair.length(1)};
    const Step step{q.view(), lengths};
    if (!goes_on) return Forest<float>(session->decode(step).host());
    steps.decode_to(end, step, {});
    steps.stream().wait();
    return Forest<float>(dynamic_cast<States&>(*session).host());
  };
  const auto reads_once = [&] { return session->describe().find("once for all entries") != std::string::npos; };
  // Leaves that tensor maps bring, which the emulator counts.
  const bool has_maps = device::kIsHostMemory && device::device().major >= 9;
  std::int64_t before = device::traffic().bytes_bulk;
  const auto leaves_read = [&] {
    const std::int64_t n_bytes = device::traffic().bytes_bulk - before;
    before += n_bytes;
    return n_bytes / (2 * kLeafKeys * (16 + 8) * 2);
  };
  const Forest<float> together = decode(false);
  CHECK(reads_once());
  if (has_maps) CHECK(leaves_read() == 4 + 2);  // those of the prefix, and one of each entry
  for (int step = 0; step < 3; ++step) {
    CHECK(same_bits(decode(true), together));
    CHECK(!reads_once());
    if (has_maps) CHECK(leaves_read() == 2 * (4 + 1));
  }
  CHECK(end.n_queued == 2);  // the third one is a graph
  pair.truncate(1, 0), pair.append(1, 70);
  const Forest<float> apart = decode(true);
  CHECK(end.n_queued == 2);
  CHECK(same_bits(apart, decode(false)));
  pair.share(0, 1, 128);
  const Forest<float> again = decode(false);
  CHECK(reads_once());
  CHECK(same_bits(again, decode(true)));
}

TEST_CASE("pages on a device: a long sequence in the pages of a window has the bits of a dense cache") {
  for (const auto& [range, order] : {std::pair{KeyRange{0, kOpenEnd}, LeafOrder::kContiguous},
                                     {dealt_ranges(1)[0], LeafOrder::kDealt},
                                     {dealt_ranges(2)[1], LeafOrder::kDealt}}) {
    for (const DType dtype : {DType::F32, DType::BF16}) {
      PagedPair pair(device::backend(), {dtype, dtype, 1, 2, 1, 8, 8}, OwnedLeaves(range, order),
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
  PagedPair pair(device::backend(), {DType::BF16, DType::BF16, 2, 2, 1, 8, 8}, KeyRange{0, 1000}, {.n_pages = 8});
  pair.append(1, 64), pair.append(0, 64);
  const std::int64_t copied = device::traffic().bytes_bulk;
  pair.check({});
  // Tensor maps bring pages as they bring rows one after the other: two leaves of both caches.
  if (device::kIsHostMemory && device::device().major >= 9)
    CHECK(device::traffic().bytes_bulk - copied == 2 * 2 * kLeafKeys * (8 + 8) * 2);
  pair.reset(KeyRange{0, 1000});
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
