// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The time of a step: closed formulas of the alpha-beta model.
#include "distributed/exchange/step_time.hpp"
#include "distributed/program/predict.hpp"
#include "tests/support/decoding.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string_view>
#include <vector>

namespace tree_attn::test {
namespace {

using Messages = std::vector<RankCost::Message>;

/// 1 us and 1000 B/us inside a node, 3 us and 100 B/us between nodes.
constexpr Cluster kSmall{{{1, 1000}, {3, 100}, 0}, 50, 0.25};

/// Costs of ranks, each with these rounds.
std::vector<RankCost> costs_of(const std::vector<std::vector<RankCost::Round>>& rounds) {
  std::vector<RankCost> costs;
  for (const auto& of_rank : rounds) costs.push_back({.rounds = of_rank});
  return costs;
}

double time_of(const std::vector<std::vector<RankCost::Round>>& rounds, int ranks_per_node,
               const Cluster& cluster = kSmall) {
  return step_time(costs_of(rounds), Topology::pretend(static_cast<int>(rounds.size()), ranks_per_node), cluster);
}

/// The paper's heads, 16 of 128 in BF16, and their states of 8320 bytes.
WorkloadShape shape_of(std::int64_t n_keys) {
  return {{.dtype = DType::BF16, .value_dtype = DType::BF16}, n_keys, {n_keys}};
}
constexpr double kState = 4 * 16 * 130, kOutput = 4 * 16 * 129;

double predicted_us(std::string_view algorithm, std::int64_t n_keys, int p, Cluster cluster = kPaperCluster, int radix = 0) {
  // Every GPU has a link of its own, and those of a node exchange at once.
  PlanOptions options{.radix = radix, .node_radix = 8};
  options.network.links_per_node = 0;
  return *predict(find_algorithm(algorithm), shape_of(n_keys), Topology::pretend(p, 8), even_ranges(n_keys, p, kLeafKeys),
                  options, cluster)
              .step_us;
}

/// Without the time to decode: one aligned subtree per rank.
double combine_us(std::string_view algorithm, int p, double overhead_us = 0, int radix = 0) {
  Cluster cluster = kPaperCluster;
  cluster.memory_bytes_per_us = std::numeric_limits<double>::infinity();
  cluster.network.overhead_us = overhead_us;
  return predicted_us(algorithm, std::int64_t{32768} * p, p, cluster, radix);
}

}  // namespace

TEST_CASE("step time: a message takes latency + bytes / bandwidth, on the link of its ranks, and is listed with its times") {
  // Messages both ways do not disturb each other.
  CHECK(time_of({{{.sends = {{1, 500}}, .receives = {{1, 200}}}}, {{.sends = {{0, 200}}, .receives = {{0, 500}}}}}, 2) ==
        1.5);
  // Rank 0 sends to its neighbour, then to the other node; both messages start at 0.
  const std::vector<std::vector<RankCost::Round>> rounds{
      {{.sends = {{1, 500}, {2, 500}}}}, {{.receives = {{0, 500}}}}, {{.receives = {{0, 500}}}}};
  std::vector<MessageTime> messages;
  CHECK(step_time(costs_of(rounds), Topology::pretend(3, 2), kSmall, &messages) == 3 + 5.0);
  REQUIRE(messages.size() == 2);
  for (const MessageTime& each : messages) {
    CHECK(each.from == 0);
    CHECK(each.bytes == 500);
    CHECK(each.leaves == 0);
    CHECK(each.arrives == (each.to == 1 ? 1 + 0.5 : 3 + 5.0));
  }
}

TEST_CASE("step time: the messages of a round share the port of their sender, and that of their receiver") {
  // One to three, also if the sender does not wait; three to one, and each to each.
  Cluster eager = kSmall;
  eager.eager = true;
  for (const Cluster& cluster : {kSmall, eager}) {
    CHECK(time_of({{{.sends = {{1, 100}, {2, 100}, {3, 300}}}},
                   {{.receives = {{0, 100}}}},
                   {{.receives = {{0, 100}}}},
                   {{.receives = {{0, 300}}}}},
                  4, cluster) == 1.5);
  }
  CHECK(time_of({{{.receives = {{1, 100}, {2, 100}, {3, 300}}}},
                 {{.sends = {{0, 100}}}},
                 {{.sends = {{0, 100}}}},
                 {{.sends = {{0, 300}}}}},
                4) == doctest::Approx(1.5).epsilon(1e-14));
  const auto all = [](int me) {
    Messages messages;
    for (int peer = 0; peer < 4; ++peer) {
      if (peer != me) messages.push_back({peer, 100});
    }
    return std::vector<RankCost::Round>{{.sends = messages, .receives = messages}};
  };
  CHECK(time_of({all(0), all(1), all(2), all(3)}, 4) == doctest::Approx(1.3).epsilon(1e-14));
  // The ports inside the node and between nodes do not: 1 + 0.2 and 3 + 1.
  CHECK(time_of({{{.sends = {{1, 200}, {2, 100}}}}, {{.receives = {{0, 200}}}}, {{.receives = {{0, 100}}}}, {}}, 2) == 4);
  CHECK(time_of({{{.sends = {{1, 5000}, {2, 100}}}}, {{.receives = {{0, 5000}}}}, {{.receives = {{0, 100}}}}, {}}, 2) == 6);
}

TEST_CASE("step time: a port receives one message after the other, also from ranks that send at different times") {
  // Rank 1 decodes for 0.2 us before it sends, so that its message begins while the other one still comes in.
  const std::vector<std::vector<RankCost::Round>> rounds{
      {{.receives = {{1, 1000}, {2, 1000}}}}, {{.decoded_bytes = 10}, {.sends = {{0, 1000}}}}, {{.sends = {{0, 1000}}}}};
  CHECK(time_of(rounds, 3) == 1 + 2.0);
}

TEST_CASE("step time: a rank decodes while messages are in flight, and merges once they are there") {
  const auto rounds = [](std::int64_t decoded_bytes) {
    return std::vector<std::vector<RankCost::Round>>{
        {{.sends = {{1, 500}}, .decoded_bytes = decoded_bytes}},
        {{.receives = {{0, 500}}, .decoded_bytes = decoded_bytes, .merge_steps = 3}}};
  };
  CHECK(time_of(rounds(50), 2) == 1.5 + 0.75);
  CHECK(time_of(rounds(100), 2) == 2 + 0.75);
}

TEST_CASE("step time: every message costs its sender and its receiver the overhead") {
  Cluster cluster = kSmall;
  cluster.network.overhead_us = 0.5;
  // Two messages leave at 0 and 0.5; the second one is there at 0.5 + 1 + 0.1, and costs another 0.5.
  CHECK(time_of({{{.sends = {{1, 100}, {2, 100}}}}, {{.receives = {{0, 100}}}}, {{.receives = {{0, 100}}}}}, 3, cluster) ==
        doctest::Approx(2.1).epsilon(1e-14));
  // Two messages that leave at 0 are there at 1.2, and cost 1 together.
  CHECK(time_of({{{.receives = {{1, 100}, {2, 100}}}}, {{.sends = {{0, 100}}}}, {{.sends = {{0, 100}}}}}, 3, cluster) ==
        doctest::Approx(2.2).epsilon(1e-14));
}

TEST_CASE("step time: a rank goes on once the messages that it sent have arrived, or at once if they were copied") {
  // Rank 0 sends to the other node, then to its neighbour.
  const std::vector<std::vector<RankCost::Round>> rounds{
      {{.sends = {{2, 100}}}, {.sends = {{1, 100}}}}, {{.receives = {{0, 100}}}}, {{.receives = {{0, 100}}}}, {}};
  CHECK(time_of(rounds, 2) == doctest::Approx(4 + 1.1).epsilon(1e-14));
  Cluster eager = kSmall;
  eager.eager = true;
  CHECK(time_of(rounds, 2, eager) == 4);
  // The port is still busy with the first message.
  CHECK(time_of({{{.sends = {{1, 500}}}, {.sends = {{1, 500}}}}, {{.receives = {{0, 500}}}, {.receives = {{0, 500}}}}}, 2,
                eager) == 1 + 0.5 + 0.5);
}

TEST_CASE("step time: what kernels store takes the latency of a store, costs no overhead, and no rank waits for it") {
  Cluster cluster = kSmall;
  cluster.network.overhead_us = 0.5;
  cluster.store_us = 0.25;
  const RankCost::Round to_both{.sends = {{1, 100}, {2, 100}}, .is_stored = true},
      from_first{.receives = {{0, 100}}, .is_stored = true};
  CHECK(time_of({{to_both}, {from_first}, {from_first}}, 3, cluster) == doctest::Approx(0.25 + 0.2).epsilon(1e-14));
  // Rank 0 stores again while the first packets are on their way.
  CHECK(time_of({{to_both, to_both}, {from_first, from_first}, {from_first, from_first}}, 3, cluster) ==
        doctest::Approx(0.25 + 0.4).epsilon(1e-14));
}

TEST_CASE("step time: what every algorithm takes is what its rounds add up to") {
  const auto inside = [](double bytes) { return 1.5 + bytes / 450e3; };
  const auto between = [](double bytes) { return 3 + bytes / 50e3; };
  const double vector = 4 * 16 * 128, scalar = 4 * 16;
  for (const int p : {8, 64, 128}) {
    CAPTURE(p);
    const double n_between = std::log2(p / 8);
    const auto butterfly = [&](double bytes) { return 3 * inside(bytes) + n_between * between(bytes); };
    const double leaders = 3 * inside(kState) + n_between * between(kState) + 3 * inside(kOutput);
    CHECK(combine_us("fused", p) == doctest::Approx(butterfly(kState)).epsilon(1e-12));
    CHECK(combine_us("packed", p) == doctest::Approx(butterfly(scalar) + butterfly(vector + scalar)).epsilon(1e-12));
    CHECK(combine_us("paper", p) == doctest::Approx(2 * butterfly(scalar) + butterfly(vector)).epsilon(1e-12));
    CHECK(combine_us("leaders", p) == doctest::Approx(leaders).epsilon(1e-12));
    // A rank at the border of a node sends to the other node in every hop, and waits for it.
    const double hop = p == 8 ? inside(kState) : between(kState);
    CHECK(combine_us("ring-state", p) == doctest::Approx((p - 1) * hop).epsilon(1e-12));
    // Keys and values of 32768 positions take longer to move than to decode.
    CHECK(predicted_us("ring", std::int64_t{32768} * p, p) ==
          doctest::Approx((p - 1) * (p == 8 ? inside(32768 * 8192) : between(32768 * 8192)) + 32768 * 8192 / 3e6)
              .epsilon(1e-12));
  }
  // Blocks of nodes: 4 x 4 of 16 in two rounds of three messages, 4 x 2 of 8 in rounds of three and one.
  const double node = 1.5 + 7 * kState / 450e3;
  CHECK(combine_us("two-level", 8, 0, 4) == doctest::Approx(node).epsilon(1e-12));
  CHECK(combine_us("two-level", 64, 0, 4) == doctest::Approx(node + 3 + 3 * kState / 50e3 + between(kState)).epsilon(1e-12));
  CHECK(combine_us("two-level", 128, 0, 4) == doctest::Approx(node + 2 * (3 + 3 * kState / 50e3)).epsilon(1e-12));
  CHECK(combine_us("two-level", 128, 0, 16) == doctest::Approx(node + 3 + 15 * kState / 50e3).epsilon(1e-12));
  CHECK(combine_us("gather", 8) == doctest::Approx(3 * 1.5 + 7 * kState / 450e3).epsilon(1e-12));
  // 16 states of 130 floats in packets of three, whatever a message costs its ranks.
  for (const double overhead_us : {0.0, 0.3})
    CHECK(combine_us("one-shot", 8, overhead_us) == doctest::Approx(0.6 + 7 * 16 * 44 * 16 / 450e3).epsilon(1e-12));
}

}  // namespace tree_attn::test
