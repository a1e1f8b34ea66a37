// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The facade: the bits of a decoder on any ranks, appended in any pieces; steps in parts, with messages that take
/// their time; refusals.
#include "distributed/interface/attention.hpp"
#include "distributed/transport/thread_transport.hpp"
#include "reference/data/input_error.hpp"
#include "reference/oracle/attention.hpp"
#include "tests/support/decoding.hpp"
#include "tests/support/message.hpp"
#include "tests/support/sequences.hpp"

#include <doctest/doctest.h>

#include <random>
#include <utility>
#include <vector>

namespace tree_attn::test::attention_test {
namespace {

constexpr double kTimeout = 60;
constexpr std::int64_t kKeys = 700, kDim = 16;
const AttentionShape kShape{.batch = 2, .heads = 4, .kv_heads = 2, .head_dim = kDim, .value_dim = 8};

Sequences inputs() { return {kShape, 2, kKeys, std::mt19937(11)}; }

/// Appends the first n keys of an entry in pieces. A rank that holds none of a piece passes null.
void append_pieces(Attention& attention, const Sequences& in, std::int64_t entry, std::int64_t n, std::int64_t piece) {
  for (std::int64_t at = attention.lengths()[static_cast<std::size_t>(entry)]; at < n;) {
    const std::int64_t end = std::min(n, at + piece);
    TensorView k = in.k.view().entry(entry).positions(at, end), v = in.v.view().entry(entry).positions(at, end);
    bool holds = false;
    for (std::int64_t a = at; a < end; ++a) holds = holds || attention.holds(a);
    if (!holds) k.data = v.data = nullptr;
    attention.append(entry, k, v);
    at = end;
  }
}

DecodeOutput alone(const Sequences& in, std::span<const std::int64_t> lengths, const SeenRule& rule = {},
                   std::span<const float> sink = {}, const Mask& mask = {}, double softcap = 0) {
  Attention attention(kShape);
  for (std::int64_t entry = 0; entry < 2; ++entry) in.append(attention, entry, lengths[static_cast<std::size_t>(entry)]);
  return attention.step(in.q, rule, sink, mask, softcap).copy();
}

/// The CPU, as if its bits were those of tensor cores.
class OtherArithmetic final : public Backend {
 public:
  std::string_view name() const override { return cpu_backend().name(); }
  std::string missing() const override { return ""; }
  std::vector<std::string> gpus() const override { return {}; }
  std::string refusal(const AttentionShape&) const override { return ""; }
  ErrorTerms error_terms(const AttentionShape&) const override { return {}; }
  std::string_view arithmetic(const AttentionShape&) const override { return "mma 8.0"; }
  AttentionShape stored(const AttentionShape& shape) const override { return shape; }
  std::unique_ptr<KvCache> make_cache(const AttentionShape& shape, const OwnedLeaves& leaves,
                                      std::int64_t capacity) const override {
    return cpu_backend().make_cache(shape, leaves, capacity);
  }
};

/// Messages have arrived where the test says so.
class ToldTransport : public ThreadTransport {
 public:
  using ThreadTransport::ThreadTransport;
  bool have_arrived() override { return has_arrived; }
  bool has_arrived = false;
};

}  // namespace

/// @tested{alg_3, Alg. 3}
TEST_CASE("facade: the same bits alone and on any ranks, for keys appended in pieces, and they are attention") {
  const Sequences in = inputs();
  const std::vector<std::int64_t> lengths{kKeys, 333};
  const DecodeOutput expected = alone(in, lengths);
  const AttentionResult exact = attention(in.q, in.k, in.v, {.lengths = lengths});
  for (std::size_t i = 0; i < exact.out.size(); ++i) CHECK(std::fabs(expected.out[i] - exact.out[i]) < 1e-5);
  for (const int p : {1, 2, 3, 4, 7}) {
    for (const std::int64_t piece : {std::int64_t{1}, std::int64_t{100}, kKeys}) {
      run_threads(Topology::pretend(p, 2), kTimeout, [&](const ThreadRanks& ranks, ThreadTransport&) {
        Attention attention(ranks, kShape, {.shares_memory = p % 2 == 0});
        append_pieces(attention, in, 0, 500, piece);
        append_pieces(attention, in, 1, 400, piece);
        attention.step(in.q);
        append_pieces(attention, in, 0, kKeys, piece);
        attention.truncate(1, 333);
        CHECK(attention.lengths()[1] == 333);
        CHECK(same_bits(attention.step(in.q).copy(), expected));
        attention.release(0);
        append_pieces(attention, in, 0, kKeys, piece);
        CHECK(same_bits(attention.step(in.q).copy(), expected));
        // What other ranks hold is not kept: together they have each row once.
        std::int64_t mine = 0;
        for (std::int64_t a = 0; a < kKeys; ++a) mine += attention.holds(a);
        CHECK(ranks.all_sum(mine) == kKeys);
      });
    }
  }
}

TEST_CASE("facade: pages: what has been given back is refused on all ranks, in a line with its positions") {
  const Sequences in = inputs();
  const SeenRule window{.causal = true, .window = 100, .sinks = 70};
  run_threads(Topology::pretend(3, 2), kTimeout, [&](const ThreadRanks& ranks, ThreadTransport&) {
    Attention attention(ranks, kShape,
                        {.pages = {.n_pages = 12, .window = window.window, .sinks = window.sinks}, .most_queries = 2});
    for (const std::int64_t entry : {0, 1}) append_pieces(attention, in, entry, kKeys, 90);
    attention.truncate(0, kKeys - 60);
    CHECK(message([&] { attention.step(in.q, window); }) ==
          "Attention::step: batch entry 0 sees keys before position 576, which may have been given back");
    append_pieces(attention, in, 0, kKeys, 90);
    attention.step(in.q, window);
    CHECK_THROWS_WITH_AS(attention.share(0, 1, 640), "Attention::share: batch entry 1 has 700 positions, not none",
                         std::out_of_range);
    attention.release(1);
    attention.share(0, 1, kKeys);
    CHECK(attention.lengths()[1] == kKeys);
    CHECK_THROWS_WITH_AS(attention.truncate(1, 300),
                         "Attention::truncate: batch entry 1 keeps the positions from 599 on, so position 300 would follow "
                         "keys that were given back",
                         std::out_of_range);
  });
}

TEST_CASE("facade: other scales, other arithmetic, and types without kernels, are refused on all ranks alike") {
  const OtherArithmetic other;
  const AttentionShape shape{
      .dtype = DType::F8_E4M3, .value_dtype = DType::F8_E4M3, .heads = 2, .kv_heads = 2, .head_dim = 8, .value_dim = 8};
  AttentionShape mixed = shape;
  mixed.value_dtype = DType::BF16;
  run_threads(Topology::pretend(3, 2), kTimeout, [&](const ThreadRanks& ranks, ThreadTransport&) {
    const auto refusal = [&](const AttentionShape& odd, const AttentionSetup& setup) {
      return message([&] { ranks.rank() == 1 ? Attention(ranks, odd, setup) : Attention(ranks, shape); });
    };
    CHECK(refusal(shape, {.scales = {{1, 2, 3}, {1, 1}}})
              .starts_with("Attention: ranks 0 and 1 differ in hash of key scales ("));
    CHECK(refusal(shape, {.found_backend = &other}) ==
          "Attention: ranks 0 and 1 differ in arithmetic (portable and mma 8.0); --portable has one on all");
    CHECK(refusal(mixed, {.backend = "emulated"}) ==
          "rank 1: --backend emulated: no kernel supports F8_E4M3 beside BF16; use --backend cpu");
  });
}

TEST_CASE("facade: if one rank has too few pages, all learn it and none appends") {
  const Sequences in = inputs();
  const std::vector<std::int64_t> lengths{320, 64};
  const DecodeOutput expected = alone(in, lengths);
  run_threads(Topology::pretend(3, 3), kTimeout, [&](const ThreadRanks& ranks, ThreadTransport&) {
    Attention attention(ranks, kShape, {.pages = {.n_pages = 5}});
    append_pieces(attention, in, 0, 320, 50);
    append_pieces(attention, in, 1, 64, 64);
    const std::string refusal = message([&] { append_pieces(attention, in, 1, 400, 336); });
    CHECK(refusal.find("pages") != std::string::npos);
    CHECK(refusal.find(ranks.rank() == 0 ? "KvCache::append: " : "Attention::append: rank 0 has too few") == 0);
    CHECK(attention.lengths()[1] == 64);
    CHECK(same_bits(attention.step(in.q).copy(), expected));
    CHECK(message([&] { Attention(ranks, kShape, {.pages = {.n_pages = ranks.rank() == 1 ? -1 : 4}}); }) ==
          "Attention: ranks 0 and 1 differ in pages (4 and -1)");
  });
}

TEST_CASE("facade: a step, whole and in parts, of rules, learned sinks, a mask and a soft cap, by every algorithm") {
  const Sequences in = inputs();
  const SeenRule rule{.causal = true, .window = 200, .sinks = 5};
  const std::vector<float> sink{0.5f, -1, 2, 0};
  const std::vector<std::int64_t> lengths{300, 300};
  std::mt19937 random(71);
  std::vector<std::uint8_t> booleans(2 * 300);
  for (std::uint8_t& each : booleans) each = static_cast<std::uint8_t>(random() % 2);
  const Mask mask = Mask::dense(booleans.data(), true, {1, 1, 2, 300});
  const DecodeOutput expected = alone(in, lengths, rule, sink, mask, 3);
  const AttentionResult exact = attention(in.q, in.k.view().positions(0, 300), in.v.view().positions(0, 300),
                                          {.rule = rule, .sink = {sink.begin(), sink.end()}, .mask = mask, .softcap = 3});
  for (std::size_t i = 0; i < exact.out.size(); ++i) CHECK(std::fabs(expected.out[i] - exact.out[i]) < 1e-5);
  for (const Algorithm& algorithm : algorithms()) {
    INFO(algorithm.name);
    run_threads(Topology::pretend(4, 2), kTimeout, [&](const ThreadRanks& ranks, ThreadTransport&) {
      Attention attention(ranks, kShape, {.algorithm = std::string(algorithm.name)});
      for (std::int64_t entry = 0; entry < 2; ++entry) in.append(attention, entry, 300);
      const DecodeOutput whole = attention.step(in.q, rule, sink, mask, 3).copy();
      if (algorithm.keeps_bits) CHECK(same_bits(whole, expected));
      for (int repeat = 0; repeat < 2; ++repeat) {
        attention.start(in.q, rule, sink, mask, 3);
        attention.progress();
        if (repeat == 1) CHECK(message([&] { attention.step(in.q); }) == "Decoder::step: a step is under way");
        if (repeat == 1) CHECK(message([&] { attention.combine(in.q, in.q); }) == "Attention::combine: a step is under way");
        CHECK(same_bits(attention.finish().copy(), whole));
      }
      CHECK(message([&] { attention.finish(); }) == "Decoder::finish: no step has been started");
      CHECK(message([&] { attention.progress(); }) == "Decoder::progress: no step has been started");
      // Appended while the messages travel: the next step sees it, this one does not.
      attention.start(in.q, rule, sink, mask, 3);
      append_pieces(attention, in, 0, 450, 450);
      CHECK(same_bits(attention.finish().copy(), whole));
      CHECK(!same_bits(attention.step(in.q, rule, sink).copy(), whole));
    });
  }
}

TEST_CASE("facade: a step that has been started waits for no other rank before it is finished") {
  const Sequences in = inputs();
  const Topology topology = Topology::pretend(4, 1);
  const std::vector<KeyRange> ranges = even_ranges(kKeys, 4, kLeafKeys);
  const std::vector<std::int64_t> lengths{kKeys, kKeys};
  run_threads(topology, 10, [&](const ThreadRanks& ranks, ThreadTransport&) {
    ToldTransport transport(ranks, topology);
    const KeyRange mine = topology.range_of(ranks.rank(), ranges);
    OpenShard shard = open_shard(cpu_backend(), kShape, mine, 0.25);
    for (std::int64_t entry = 0; entry < 2; ++entry)
      shard.cache->append(entry, in.k.view().entry(entry).positions(mine.begin, mine.end),
                          in.v.view().entry(entry).positions(mine.begin, mine.end));
    const auto decoder = find_algorithm("two-level").open(transport, shard, ranges, {.radix = 2});
    const DecodeOutput whole = decoder->step({in.q, lengths}).copy();
    // One rank after the other, so that nothing has been sent to the first; and no two ask as often.
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == ranks.rank()) {
        decoder->start({in.q, lengths});
        for (int i = 0; i <= rank; ++i) CHECK(!decoder->progress());
      }
      ranks.barrier();
    }
    transport.has_arrived = true;
    CHECK(decoder->progress());  // both rounds
    CHECK(same_bits(decoder->finish().copy(), whole));
  });
}

TEST_CASE("facade: other lengths, null data of a rank's own keys, other axes, and unknown names are refused") {
  const Sequences in = inputs();
  run_threads(Topology::pretend(2, 2), kTimeout, [&](const ThreadRanks& ranks, ThreadTransport&) {
    CHECK(message([&] {
            Attention(ranks, kShape, {.algorithm = ranks.rank() == 1 ? "none" : "gather"});
          }).starts_with("rank 1: --algorithm none: unknown"));
    Attention attention(ranks, kShape);
    TensorView k = in.k.view().entry(0).positions(0, 200), v = in.v.view().entry(0).positions(0, 200);
    CHECK(message([&] { attention.append(2, k, v); }).find("batch entry 2") != std::string::npos);
    CHECK(message([&] { attention.append(0, v, v); }).find("k has") != std::string::npos);
    CHECK(message([&] { attention.append(0, k, in.v.view().entry(0).positions(0, 20)); }) ==
          "Attention::append: k has 200 positions, v has 20");
    k.data = nullptr;
    const std::string mine = ranks.rank() == 0 ? "128" : "72";
    CHECK(message([&] { attention.append(0, k, v); }) == "Attention::append: rank " + std::to_string(ranks.rank()) +
                                                             " holds " + mine +
                                                             " of the positions [0, 200), but has no data of them");
    CHECK(attention.lengths()[0] == 0);
    append_pieces(attention, in, 0, ranks.rank() == 0 ? 65 : 64, 64);
    CHECK(message([&] {
            attention.step(in.q);
          }).starts_with("Decoder::step: ranks 0 and 1 differ in the longest sequence (65 and 64), "));
    append_pieces(attention, in, 0, 65, 1);
    attention.step(in.q);
    CHECK(message([&] { attention.truncate(0, 66); }) == "Attention::truncate: batch entry 0 has 65 positions, not 66");
    CHECK(message([&] { attention.truncate(5, 0); }).find("batch entry 5") != std::string::npos);
  });
}

TEST_CASE("facade: an Attention that is moved goes on where it was, and in a vector too") {
  const Sequences in = inputs();
  Attention first(kShape);
  for (const std::int64_t entry : {0, 1}) append_pieces(first, in, entry, 300, 300);
  const DecodeOutput expected = first.step(in.q).copy();
  Attention second(std::move(first));
  CHECK(same_bits(second.step(in.q).copy(), expected));
  std::vector<Attention> all;
  for (int i = 0; i < 3; ++i) all.emplace_back(kShape);
  all[1] = std::move(second);
  all.erase(all.begin());
  CHECK(same_bits(all[0].step(in.q).copy(), expected));
  append_pieces(all[0], in, 0, 302, 2);
  Attention& self = all[0];
  all[0] = std::move(self);
  CHECK(all[0].lengths()[0] == 302);
  CHECK(AttentionShape{.dtype = DType::BF16}.value_dtype == DType::BF16);  // that of the keys unless it is given
}

TEST_CASE("facade: combine merges what the ranks have, without keys of its own, as a Combiner of the same part") {
  std::mt19937 random(5);
  const Tensor o = normal_tensor(random, {1, 4, 1, 8}), lse = normal_tensor(random, {1, 4, 1, 1});
  run_threads(Topology::pretend(4, 2), kTimeout, [&](const ThreadRanks& ranks, ThreadTransport& transport) {
    Attention attention(ranks, {.batch = 1, .heads = 4, .kv_heads = 4, .head_dim = 8, .value_dim = 8});
    for (const OutputPart part : {OutputPart::kAll, OutputPart::kHeads, OutputPart::kAll}) {
      Combiner combiner(transport, o.shape, part);
      CHECK(same_bits(attention.combine(o, lse, part).copy(), combiner.combine(o, lse).copy()));
    }
  });
}

}  // namespace tree_attn::test::attention_test
