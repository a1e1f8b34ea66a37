// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Steps of layers that are sharded by heads: the bits of step() on any ranks and nodes, bytes as predicted,
/// refusals.
#include "distributed/interface/attention.hpp"
#include "distributed/transport/thread_transport.hpp"
#include "reference/data/input_error.hpp"
#include "tests/support/decoding.hpp"
#include "tests/support/message.hpp"
#include "tests/support/sequences.hpp"

#include <doctest/doctest.h>

#include <mutex>
#include <random>
#include <vector>

namespace tree_attn::test::by_heads_test {
namespace {

constexpr double kTimeout = 60;
constexpr std::int64_t kHeads = 24, kKeys = 900;
const AttentionShape kShape{.batch = 2, .heads = kHeads, .kv_heads = 3, .head_dim = 8, .value_dim = 4};

const Sequences& inputs() {
  static const Sequences all(kShape, 3, kKeys, std::mt19937(29));
  return all;
}
const std::vector<float> kSink = [] {
  std::mt19937 random(30);
  return normal_elements(random, kHeads, 2);
}();

/// The first l queries of n heads from the first on.
TensorView queries(std::int64_t l, std::int64_t first = 0, std::int64_t n = kHeads) {
  TensorView view = inputs().q.view().positions(0, l);
  view.data = view.element(first * view.stride[1]), view.shape[1] = n;
  return view;
}

/// Appends keys up to n of the first sequence, and fewer of the other.
void append_to(Attention& attention, std::int64_t n) {
  inputs().append(attention, 0, n), inputs().append(attention, 1, n / 3);
}

/// The heads of rank r of p of an output of l queries.
DecodeOutput heads_of(const DecodeOutput& output, std::int64_t l, int r, int p) {
  const std::int64_t n = kHeads / p * l;
  DecodeOutput part;
  for (std::int64_t i = 0; i < 2; ++i) {
    const auto first = i * kHeads * l + r * n;
    part.out.insert(part.out.end(), output.out.begin() + first * 4, output.out.begin() + (first + n) * 4);
    part.lse.insert(part.lse.end(), output.lse.begin() + first, output.lse.begin() + first + n);
  }
  return part;
}

}  // namespace

/// @tested{alg_3, Alg. 3}
TEST_CASE("by heads: queries in and outputs out have the bits of a step on any ranks and nodes, and the bytes predicted") {
  const SeenRule window{.causal = true, .window = 200, .sinks = 2};
  const KvScales scales{{1, 2, 0.5f, 4, 1, 2}, {2, 1, 0.25f, 1, 8, 1}};
  for (const bool is_eight : {false, true}) {
    AttentionShape shape = kShape;
    AttentionSetup setup;
    if (is_eight) shape.dtype = shape.value_dtype = DType::F8_E4M3, setup.scales = scales;
    for (const int p : {1, 2, 3, 4, 6, 8}) {
      if (is_eight && p % 3 != 0) continue;
      for (const Topology& topology : groupings(p)) {
        CAPTURE(p);
        CAPTURE(topology.n_nodes());
        run_threads(topology, kTimeout, [&](ThreadTransport& transport) {
          const int r = transport.rank();
          const std::int64_t n = kHeads / p;
          Attention alone(shape, setup), attention(transport, shape, setup);
          CHECK(same_bits(attention.step_by_heads(queries(1, r * n, n)).copy(),
                          heads_of(alone.step(queries(1)).copy(), 1, r, p)));  // no key yet
          for (const auto& [n_keys, l] : {std::pair<std::int64_t, std::int64_t>{300, 3}, {301, 1}, {kKeys, 2}}) {
            append_to(alone, n_keys), append_to(attention, n_keys);
            const DecodeOutput whole = alone.step(queries(l), window, kSink).copy(), plain = alone.step(queries(l)).copy();
            const TensorView mine = queries(l, r * n, n);
            transport.clear_traffic();
            CHECK(same_bits(attention.step_by_heads(mine).copy(), heads_of(plain, l, r, p)));
            const Traffic traffic = transport.traffic();
            CHECK(same_bits(attention.step_by_heads(mine, window, kSink).copy(), heads_of(whole, l, r, p)));
            CHECK(same_bits(attention.step(queries(l), window, kSink).copy(), whole));

            WorkloadShape workload{shape, n_keys, {n_keys, n_keys / 3}, LeafOrder::kDealt};
            workload.n_queries = l;
            const RankCost cost =
                find_algorithm("two-level")
                    .cost(topology, r, dealt_ranges(p), workload, {.network = transport.network()}, OutputPart::kHeads);
            std::int64_t bytes = QueriesByHeads::bytes(mine, p);
            for (const RankCost::Round& round : cost.rounds)
              for (const RankCost::Message& message : round.sends) bytes += message.bytes;
            CHECK(traffic.bytes == bytes);
            CHECK(traffic.merge_steps == cost.merge_steps);
            CHECK(traffic.collectives == cost.collectives + (p > 1));
          }
        });
      }
    }
  }
}

TEST_CASE("by heads: a rank sends the states of its heads to their ranks once, and nothing comes back") {
  constexpr int kRanks = 8;
  run_threads(Topology::pretend(kRanks, kRanks), kTimeout, [&](ThreadTransport& transport) {
    Attention attention(transport, kShape);
    append_to(attention, 512);  // one subtree on each rank
    const std::int64_t n = kHeads / kRanks;
    attention.step_by_heads(queries(1, transport.rank() * n, n));
    transport.clear_traffic();
    attention.step_by_heads(queries(1, transport.rank() * n, n));
    CHECK(transport.traffic().messages == 2 * (kRanks - 1));
    CHECK(transport.traffic().bytes == (kRanks - 1) * 2 * n * (8 + 2 + 4) * 4);
  });
}

TEST_CASE("by heads: ranges of uneven ranks keep the bits, and a step in parts follows") {
  for (const Topology& topology : {Topology::pretend(4, 2), Topology::pretend(4, 4)}) {
    run_threads(topology, kTimeout, [&](ThreadTransport& transport) {
      const int r = transport.rank();
      Attention alone(kShape, {.ranges = {{0, kOpenEnd}}}),
          attention(transport, kShape, {.ranges = {{0, 64}, {64, 64}, {64, 640}, {640, kOpenEnd}}});
      append_to(alone, kKeys), append_to(attention, kKeys);
      const DecodeOutput whole = alone.step(queries(3)).copy();
      CHECK(same_bits(attention.step_by_heads(queries(3, r * 6, 6)).copy(), heads_of(whole, 3, r, 4)));
      attention.start(queries(3));
      CHECK(same_bits(attention.finish().copy(), whole));
    });
  }
}

TEST_CASE("by heads: what one rank refuses all refuse in one line, and the object lives on") {
  run_threads(Topology::pretend(3, 3), kTimeout, [&](ThreadTransport& transport) {
    const int r = transport.rank();
    Attention attention(transport, kShape);
    append_to(attention, 300);
    const DecodeOutput expected = attention.step_by_heads(queries(2, r * 8, 8)).copy();
    const auto refused = [&](const std::string& line, const auto& call) {
      CHECK(message<InputError>(call) == line);
      CHECK(same_bits(attention.step_by_heads(queries(2, r * 8, 8)).copy(), expected));
    };
    refused("rank 2: Attention::step_by_heads: q is [2, 24, 2, 8]; expected [2, 8, l, 8], the heads of one of 3 ranks",
            [&] { attention.step_by_heads(r == 2 ? queries(2) : queries(2, r * 8, 8)); });
    refused("Attention::step_by_heads: ranks 0 and 1 differ in the number of queries (2 and 1)",
            [&] { attention.step_by_heads(queries(r == 1 ? 1 : 2, r * 8, 8)); });
    refused("rank 0 has called Attention::step_by_heads, and rank 1 Decoder::step",
            [&] { r == 1 ? attention.step(queries(2)) : attention.step_by_heads(queries(2, r * 8, 8)); });
    refused("Decoder::step: ranks 0 and 1 differ in the window (0 and 9)",
            [&] { attention.step_by_heads(queries(2, r * 8, 8), {.window = r == 1 ? 9 : 0}); });
    refused("rank 1: Attention::step_by_heads: q is in memory of a device", [&] {
      TensorView q = queries(2, r * 8, 8);
      q.on_device = r == 1;
      attention.step_by_heads(q);
    });
    attention.use("gather");
    CHECK(message<InputError>([&] { attention.step_by_heads(queries(2, r * 8, 8)); }) ==
          "Decoder::step: two-level alone leaves the output by heads");
    AttentionShape five = kShape;
    five.heads = five.kv_heads = 5;
    Attention odd(transport, five);
    CHECK(message<InputError>([&] { odd.step_by_heads(queries(2, 0, 1)); }) ==
          "Decoder::step: 5 heads cannot be scattered over 3 ranks");
  });
}

TEST_CASE("by heads: a batch with more parts than a plan has is refused, and step() goes on") {
  const AttentionShape shape{.batch = (1 << 20) + 1, .heads = 1, .kv_heads = 1, .head_dim = 1, .value_dim = 1};
  const Tensor q(std::vector<float>((1 << 20) + 1), {shape.batch, 1, 1, 1}), five({5}, {1, 1, 1, 1});
  for (const bool is_first : {true, false}) {
    Attention attention(shape);
    attention.append(7, five, five);
    if (!is_first) attention.step(q);
    CHECK(message([&] { attention.step_by_heads(q); }) ==
          "heads_plan: a batch of 1048577 over 1 ranks; at most 2^20 parts of the rows are possible");
    CHECK(attention.step(q).out[7] == 5);
  }
}

}  // namespace tree_attn::test::by_heads_test
