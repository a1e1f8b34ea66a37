// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A cache that moves from p to p' ranks: as many bytes as must move, those that were predicted, and the bits of a
/// cache that was always there (section 5.3).
#include "distributed/exchange/reshard.hpp"
#include "distributed/transport/thread_transport.hpp"
#include "tests/support/decoding.hpp"
#include "tests/support/message.hpp"

#include <atomic>
#include <initializer_list>
#include <set>
#include <stdexcept>

namespace tree_attn::test {
namespace {

constexpr double kScale = 0.4;
constexpr std::int64_t kKeys = 2048;

bool holds(const OwnedLeaves& leaves, std::int64_t position) {
  return leaves.n_keys(position + 1) > leaves.n_keys(position);
}

/// One rank that holds everything, from a cache that was filled at once.
DecodeOutput fresh(const WorkloadShape& shape, Workload& workload, std::span<const std::int64_t> lengths) {
  const OwnedLeaves leaves(shape.order == LeafOrder::kDealt ? dealt_ranges(1)[0] : KeyRange{0, kKeys}, shape.order);
  const auto cache = cpu_backend().make_cache(shape, leaves, 0);
  fill(*cache, workload, lengths);
  const auto session = cache->open(kScale);
  return finish_rows(session->decode({workload.query(0), lengths}).host().fold(), shape.n_rows(), shape.value_dim);
}

/// One rank of a cache that moves from one number of ranks to another, again and again, and grows before each move.
/// @param numbers of ranks that hold keys, at most those of the transport
/// @returns wrong outputs, and counts that are not the least
std::int64_t walk(Transport& transport, const WorkloadShape& shape, std::initializer_list<int> numbers) {
  const auto ranges_of = [&](int p) {
    std::vector<KeyRange> ranges = shape.order == LeafOrder::kDealt ? dealt_ranges(p) : even_ranges(640, p, kLeafKeys);
    if (shape.order == LeafOrder::kContiguous) ranges.back().end = kOpenEnd;
    return spread_over(ranges, transport.size());
  };
  const auto open = [&](std::span<const KeyRange> ranges) {
    const OwnedLeaves leaves(transport.topology().range_of(transport.rank(), ranges), shape.order);
    return open_shard(cpu_backend(), shape, leaves, 0, kScale);
  };
  std::int64_t n_wrong = 0, n_sent = 0, n_keys = 700;
  const auto workload = make_workload(shape, 17, 1);
  std::vector<KeyRange> ranges = ranges_of(*numbers.begin());
  OpenShard shard = open(ranges);
  for (const int p : numbers) {
    const std::vector<std::int64_t> lengths{n_keys, n_keys / 3, std::max<std::int64_t>(0, n_keys - 800)};
    fill(*shard.cache, *workload, lengths);
    const std::vector<KeyRange> wanted = ranges_of(p);
    OpenShard moved = open(wanted);
    const std::vector<OwnedLeaves> before = owned_leaves(ranges, shape.order), after = owned_leaves(wanted, shape.order);
    transport.clear_traffic();
    reshard(transport, *shard.cache, *moved.cache, before, after, lengths);

    std::int64_t bytes = 0;
    std::set<std::ptrdiff_t> peers;
    for (const std::int64_t length : lengths) {
      for (std::int64_t position = 0; position < length; ++position) {
        if (!holds(shard.cache->leaves(), position) || holds(moved.cache->leaves(), position)) continue;
        bytes += moved.cache->shape().bytes_per_position() / moved.cache->shape().batch;
        const auto has_it = [position](const OwnedLeaves& each) { return holds(each, position); };
        peers.insert(std::ranges::find_if(after, has_it) - after.begin());
      }
    }
    n_wrong += transport.traffic().messages != std::ssize(peers);
    n_wrong += transport.traffic().bytes != bytes;
    n_sent += bytes;

    shard = std::move(moved), ranges = wanted;
    for (const char* algorithm : {"two-level", "gather"}) {
      const std::unique_ptr<Decoder> decoder = find_algorithm(algorithm).open(transport, shard, ranges);
      n_wrong += !same_bits(decoder->step({workload->query(0), lengths}).copy(), fresh(shape, *workload, lengths));
    }
    n_keys += 150;
  }
  // A walk that moves nothing shows nothing.
  n_wrong += std::ranges::max(transport.ranks().all_gather(n_sent, "the bytes of all ranks")) == 0;
  return n_wrong;
}

}  // namespace

TEST_CASE("reshard: a cache that goes from p to p' ranks, and on, has the bits of one that stays, in both orders") {
  for (const LeafOrder order : {LeafOrder::kContiguous, LeafOrder::kDealt}) {
    for (const DType dtype : {DType::F32, DType::BF16}) {
      WorkloadShape shape{
          {.dtype = dtype, .value_dtype = dtype, .batch = 3, .heads = 4, .kv_heads = 2, .head_dim = 8, .value_dim = 6},
          kKeys,
          {},
          order};
      shape.values_in_keys = dtype == DType::F32;
      std::atomic<std::int64_t> n_wrong = 0;
      run_threads(mixed_grouping(6), 60, [&](ThreadTransport& transport) {
        n_wrong += walk(transport, shape, {4, 6, 1, 3, 3, 2, 5});
      });
      CHECK(n_wrong == 0);
    }
  }
}

TEST_CASE("reshard: rows move between orders of leaves too, and between uneven ranges") {
  const std::vector<KeyRange> cut{{0, 128}, {128, 128}, {128, 320}, {320, 1000}};
  const std::vector<OwnedLeaves> chunks = owned_leaves(cut, LeafOrder::kContiguous),
                                 dealt = owned_leaves(dealt_ranges(4), LeafOrder::kDealt);
  for (const auto& [before, after] : {std::pair{chunks, dealt}, {dealt, chunks}, {dealt, dealt}, {chunks, chunks}}) {
    // Each key once, from the row that has it to the row that will.
    std::vector<int> n_moves(1000, 0);
    for (const RowMove& move : moves_between(before, after, 1000)) {
      for (std::int64_t i = 0; i < move.n; ++i) {
        const std::int64_t at = before[static_cast<std::size_t>(move.from)].position(move.row_from + i);
        CHECK(at == after[static_cast<std::size_t>(move.to)].position(move.row_to + i));
        ++n_moves[static_cast<std::size_t>(at)];
      }
    }
    CHECK(n_moves == std::vector<int>(1000, 1));
  }
  // A chunk that stays where it is is one move.
  CHECK(moves_between(chunks, chunks, 1000).size() == 3);
}

TEST_CASE("reshard: what does not fit is refused") {
  CHECK_THROWS_WITH_AS(
      moves_between(owned_leaves(dealt_ranges(2), LeafOrder::kDealt), owned_leaves(dealt_ranges(3), LeafOrder::kDealt), 1),
      "moves_between: 2 and 3 ranks", std::invalid_argument);
  const std::vector<KeyRange> short_range{{0, 64}};
  const std::vector<OwnedLeaves> leaves = owned_leaves(short_range, LeafOrder::kContiguous);
  CHECK_THROWS_WITH_AS(moves_between(leaves, leaves, 65), "moves_between: no rank holds key 64", std::out_of_range);
  CHECK_THROWS_WITH_AS(spread_over(short_range, 0), "spread_over: 1 ranges over 0 ranks", std::invalid_argument);
  const std::vector<OwnedLeaves> wide{KeyRange{0, 192}};
  const auto error_of = [&](std::int64_t length, std::int64_t n_in_new_cache, float scale = 1, std::int64_t window = 0,
                            bool values_in_keys = false) {
    constexpr DType kType = DType::F8_E4M3;
    const AttentionShape shape{kType, kType, 1, 1, 1, 2, 2}, other{kType, kType, 1, 1, 1, 2, 2, values_in_keys};
    const auto from = cpu_backend().make_cache(shape, wide[0], 0), to = cpu_backend().make_cache(other, wide[0], 0);
    from->set_scales({{scale}, {1}}), to->set_scales({{1}, {1}});
    if (window > 0) from->use_pages({.n_pages = 3, .window = window});
    const std::vector<float> zeros(2 * 192);
    const auto view = [&](std::int64_t n) { return TensorView::dense(zeros.data(), DType::F32, {1, 1, n, 2}); };
    from->append(0, view(100), view(100)), to->append(0, view(n_in_new_cache), view(n_in_new_cache));
    return message([&] {
      run_threads(Topology::pretend(1, 1), 60,
                  [&](ThreadTransport& transport) { reshard(transport, *from, *to, wide, wide, std::array{length}); });
    });
  };
  CHECK(error_of(100, 0) == "");
  CHECK(error_of(101, 0) == "reshard: rank 0 holds other rows than sequences of these lengths have");
  CHECK(error_of(100, 1) == "reshard: the new cache holds 1 rows");
  CHECK(error_of(100, 0, 2) == "reshard: the caches have other scales");
  CHECK(error_of(100, 0, 1, 0, true) == "reshard: the caches have other shapes");
  CHECK(error_of(100, 0, 1, 37) == "");
  CHECK(error_of(100, 0, 1, 36) == "reshard: keys of batch entry 0 have been given back");
}

TEST_CASE("reshard: ranks that differ are told so, and that another one refuses its own caches") {
  std::atomic<int> n_told = 0, n_refused = 0;
  run_threads(Topology::pretend(2, 2), 5, [&](ThreadTransport& transport) {
    const std::vector<OwnedLeaves> leaves = owned_leaves(dealt_ranges(2), LeafOrder::kDealt);
    const OwnedLeaves& own = leaves[static_cast<std::size_t>(transport.rank())];
    const AttentionShape shape{.heads = 1, .kv_heads = 1, .head_dim = 2, .value_dim = 2};
    const auto from = cpu_backend().make_cache(shape, own, 0), to = cpu_backend().make_cache(shape, own, 0);
    // Other lengths; and 64 positions, which rank 0 holds, and has none of them.
    for (const std::int64_t length : {transport.rank(), 64}) {
      const std::string line =
          message([&] { reshard(transport, *from, *to, leaves, leaves, std::array{std::int64_t{length}}); });
      n_told += line.starts_with("reshard: ranks 0 and 1 differ in the longest sequence (0 and 1), the hash of lengths (");
      n_refused += line == "rank 0: reshard: rank 0 holds other rows than sequences of these lengths have";
    }
  });
  CHECK(n_told == 2);
  CHECK(n_refused == 2);
  // Rank 1 takes the leaves of rank 0 for more than they are.
  run_threads(Topology::pretend(2, 2), 5, [&](ThreadTransport& transport) {
    const AttentionShape shape{.heads = 1, .kv_heads = 1, .head_dim = 2, .value_dim = 2};
    const OwnedLeaves all[]{OwnedLeaves({0, transport.rank() == 0 ? 64 : 128}), OwnedLeaves({128, kOpenEnd})};
    const auto cache = cpu_backend().make_cache(shape, all[transport.rank()], 0);
    const std::string line = message([&] { reshard(transport, *cache, *cache, all, all, std::array{std::int64_t{0}}); });
    CHECK_MESSAGE(line.starts_with("reshard: ranks 0 and 1 differ in the hash of leaves ("), line);
  });
}

}  // namespace tree_attn::test
