// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Blocks of ranks joined k at a time: the messages of the closed formulas, where rows are cut, and the radix that
/// the model chooses (section 5.3). test_plan.cpp has the bits of these plans.
#include "distributed/exchange/plan_builder.hpp"
#include "distributed/program/predict.hpp"
#include "tests/support/decoding.hpp"

#include <stdexcept>

namespace tree_attn::test::two_level_test {
namespace {

constexpr std::int64_t kRows = 5, kValueDim = 3;
constexpr std::int64_t kNeverCut = std::int64_t{1} << 60;
/// Joins all ranks of a node in one round.
constexpr int kFlat = 1 << 10;
/// MPI, with a link for each rank.
constexpr Network kOwnLinks = [] {
  Network network = kMpiNetwork;
  network.links_per_node = 0;
  return network;
}();

/// Nodes of the given sizes.
Topology nodes_of(std::initializer_list<int> sizes) {
  std::vector<int> node_of_rank;
  int node = 0;
  for (const int size : sizes) node_of_rank.insert(node_of_rank.end(), static_cast<std::size_t>(size), node++);
  return Topology(node_of_rank);
}

/// States of some heads.
WorkloadShape shape_of(std::int64_t n_heads, std::int64_t value_dim) {
  return {{.batch = 1, .heads = n_heads, .kv_heads = n_heads, .head_dim = 4, .value_dim = value_dim}, 0, {}};
}

const WorkloadShape kShape = shape_of(kRows, kValueDim);

Prediction predicted(const Topology& topology, std::span<const KeyRange> ranges, const PlanOptions& options,
                     const WorkloadShape& shape = kShape) {
  return predict(find_algorithm("two-level"), shape, topology, ranges, options);
}

/// As many keys on every rank: one aligned subtree.
std::vector<KeyRange> aligned(int p) { return even_ranges(kLeafKeys * p, p, kLeafKeys); }

/// The radix between nodes.
int radix_of(const Network& network, int n_nodes, double bytes) {
  return default_radix(network.between, network.overhead_us, n_nodes, bytes);
}

}  // namespace

TEST_CASE("two-level: messages, bytes and rounds of equal nodes, for rows together and in slices") {
  constexpr std::int64_t kState = 4 * kRows * (2 + kValueDim), kOutput = 4 * kRows * (1 + kValueDim);
  for (const int per_node : {2, 4, 8}) {
    for (const int radix : {2, 4}) {
      for (int n_nodes = radix; n_nodes <= 16; n_nodes *= radix) {
        const int p = n_nodes * per_node, full = n_rounds(n_nodes, radix);
        const Topology topology = Topology::pretend(p, per_node);
        CAPTURE(p);
        CAPTURE(radix);
        PlanOptions options{.radix = radix, .node_radix = kFlat, .slice_bytes = kState, .network = kOwnLinks};
        const Prediction together = predicted(topology, aligned(p), options);
        CHECK(together.messages == p * (per_node - 1) + full * p * (radix - 1));
        CHECK(together.bytes == kState * together.messages);
        CHECK(together.bytes_between_nodes == kState * full * p * (radix - 1));
        CHECK(together.rounds == 1 + full);
        CHECK(together.collectives == 1 + full);
        CHECK(together.merge_steps == per_node - 1 + full * (radix - 1));

        options.slice_bytes = kState - 1;
        const Prediction cut = predicted(topology, aligned(p), options);
        CHECK(cut.bytes == n_nodes * (per_node - 1) * (kState + kOutput) + full * n_nodes * (radix - 1) * kState);
        CHECK(cut.bytes_between_nodes == full * n_nodes * (radix - 1) * kState);
        CHECK(cut.rounds == 2 + full);
        CHECK(cut.collectives == 2 + full);
        if (per_node <= kRows)  // no slice is empty
          CHECK(cut.messages == 2 * p * (per_node - 1) + full * p * (radix - 1));
      }
    }
  }
}

TEST_CASE("two-level: rows are cut above 32 KiB a message, where all nodes have as many ranks") {
  // 512 bytes a row.
  const auto is_cut = [](const Topology& topology, std::int64_t n_rows) {
    const WorkloadShape shape = shape_of(n_rows, 126);
    return predicted(topology, aligned(topology.size()), {.network = kOwnLinks}, shape).bytes <
           predicted(topology, aligned(topology.size()), {.slice_bytes = kNeverCut}, shape).bytes;
  };
  CHECK(kMpiNetwork.slice_bytes == 64 * 512);
  CHECK_FALSE(is_cut(nodes_of({4, 4}), 64));
  CHECK(is_cut(nodes_of({4, 4}), 65));
  CHECK(is_cut(nodes_of({4}), 65));
  CHECK(is_cut(nodes_of({2, 2}), 65));
  CHECK_FALSE(is_cut(nodes_of({4, 3}), 65));
  CHECK_FALSE(is_cut(nodes_of({1, 1, 1}), 65));
  // NCCL's low-latency protocol ends at half of that.
  CHECK(kNcclNetwork.slice_bytes == 32 * 512);
  const std::vector<KeyRange> halves = aligned(2);
  CHECK(predicted(nodes_of({2}), halves, {.slice_bytes = 0}).rounds == 1);
}

TEST_CASE("two-level: where the ranks of a node share a link, rows are cut once it carries 32 KiB in copies") {
  WorkloadShape shape = shape_of(16, 128);
  constexpr std::int64_t kBytes = 4 * 16 * 130;
  const auto between_nodes = [&](const Topology& topology, int n_links) {
    Network network = kMpiNetwork;
    network.links_per_node = n_links;
    return predicted(topology, aligned(topology.size()), {.radix = 2, .network = network}, shape).bytes_between_nodes;
  };
  // Two nodes, one message each way from every rank, or one slice of it.
  CHECK(between_nodes(nodes_of({2, 2}), 1) == 2 * 2 * kBytes);
  CHECK(between_nodes(nodes_of({4, 4}), 1) == 2 * kBytes);
  CHECK(between_nodes(nodes_of({4, 4}), 2) == 2 * 4 * kBytes);
  CHECK(between_nodes(nodes_of({8, 8}), 2) == 2 * kBytes);
  CHECK(between_nodes(nodes_of({4, 4}), 0) == 2 * 4 * kBytes);
  CHECK(between_nodes(nodes_of({8, 8}), 16) == 2 * 8 * kBytes);
  // 16 nodes of 64 ranks: a 64th of the bytes. On one node no link is shared.
  const Topology large = Topology::pretend(1024, 64);
  CHECK(between_nodes(large, 0) == 64 * between_nodes(large, 1));
  CHECK(predicted(nodes_of({64}), aligned(64), {.network = kMpiNetwork}, shape).rounds == 6);
  // More links than ranks: each still carries a whole message, here one of 33280 bytes.
  shape = shape_of(64, 128);
  CHECK(between_nodes(nodes_of({4, 4}), 16) == 2 * 4 * kBytes);
}

TEST_CASE("two-level: the ranks of a node are joined a few at a time where messages cost more than rounds") {
  const WorkloadShape shape = shape_of(16, 128);
  const auto per_rank = [&](const PlanOptions& options) {
    return predicted(nodes_of({128}), aligned(128), options, shape).messages / 128.0;
  };
  CHECK(per_rank({.node_radix = kFlat}) == 127);
  CHECK(per_rank({.node_radix = 4}) == 10);
  CHECK(per_rank({}) == 7);
  CHECK(per_rank({.network = kSharedNetwork}) == 7);
  CHECK(predicted(nodes_of({8}), aligned(8), {.network = kNcclNetwork}, shape).rounds == 1);
}

TEST_CASE("two-level: the default radix has the least time of the model, and 2 is the least") {
  const auto time = [](const Network& network, int n_nodes, int k, double bytes) {
    int rounds = 0;
    for (double joined = 1; joined < n_nodes; joined *= k) ++rounds;
    return rounds *
           (network.between.latency_us + (k - 1) * (bytes / network.between.bytes_per_us + 2 * network.overhead_us));
  };
  const Network latency_only{.inside = {1, 1e9}, .between = {5, 1e9}, .overhead_us = 0};
  for (const Network& network : {kMpiNetwork, kSharedNetwork, kThreadNetwork, kNcclNetwork, latency_only}) {
    for (const double bytes : {0.0, 8320.0, 66560.0, 532480.0}) {
      for (int n_nodes = 1; n_nodes <= 130; ++n_nodes) {
        const int k = radix_of(network, n_nodes, bytes);
        CHECK((std::has_single_bit(static_cast<unsigned>(k)) || k == n_nodes));
        CHECK(k >= 2);
        CHECK(k <= std::max(n_nodes, 2));
        for (int other = 2; other <= n_nodes; other = other < n_nodes ? std::min(2 * other, n_nodes) : n_nodes + 1)
          CHECK(time(network, n_nodes, k, bytes) <= time(network, n_nodes, other, bytes));
      }
    }
  }
  // 16 heads of 128: the paper's cluster of 16 nodes, and larger ones.
  CHECK(radix_of(kMpiNetwork, 16, 8320) == 4);
  CHECK(radix_of(kMpiNetwork, 128, 8320) == 4);
  CHECK(radix_of(kMpiNetwork, 512, 8320) == 8);
  CHECK(radix_of(kMpiNetwork, 6, 8320) == 6);
  CHECK(radix_of(kMpiNetwork, 16, 532480) == 2);
  CHECK(radix_of(latency_only, 128, 8320) == 128);
  CHECK(radix_of(kMpiNetwork, 1, 8320) == 2);
  // Shared memory ends at the node. Threads are all on one machine, where a message costs more than a round saves. A round
  // of NCCL is a kernel, which costs more than the messages of all nodes.
  for (int n_nodes = 1; n_nodes <= 130; ++n_nodes)
    CHECK(radix_of(kSharedNetwork, n_nodes, 8320) == radix_of(kMpiNetwork, n_nodes, 8320));
  CHECK(radix_of(kThreadNetwork, 16, 8320) == 2);
  CHECK(radix_of(kNcclNetwork, 16, 8320) == 16);
}

TEST_CASE("two-level: the plan has the radix that is reported, from the size of the states and the network") {
  const Algorithm& two_level = find_algorithm("two-level");
  REQUIRE((two_level.radix != nullptr));
  const Topology topology = Topology::pretend(32, 2);
  const std::vector<KeyRange> ranges = aligned(32);
  const auto of = [&](PlanOptions options) {
    const int radix = two_level.radix(topology, ranges, options.for_step(kShape, 1));
    CHECK(predicted(topology, ranges, options).messages == 32 + n_rounds(16, radix) * 32 * (radix - 1));
    return radix;
  };
  CHECK(of({}) == radix_of(kMpiNetwork, 16, 4 * kRows * (2 + kValueDim)));
  CHECK(of({.radix = 2}) == 2);
  CHECK(of({.radix = 16}) == 16);
  CHECK(of({.network = {.inside = {1, 1}, .between = {1000, 1e6}, .overhead_us = 0}}) == 16);
  CHECK(of({.network = {.inside = {1, 1}, .between = {0, 1e6}, .overhead_us = 1}}) == 2);
  // 64 batch entries on 16 nodes of 8: slices of 65 KB, of which more are worth a round than of messages of 520 KB.
  const WorkloadShape large{{.batch = 64, .heads = 16, .value_dim = 128}, 0, {}};
  const auto of_large = [&](std::int64_t slice_bytes) {
    return two_level.radix(Topology::pretend(128, 8), aligned(128),
                           PlanOptions{.slice_bytes = slice_bytes, .network = kOwnLinks}.for_step(large, 1));
  };
  CHECK(of_large(kMpiNetwork.slice_bytes) == radix_of(kMpiNetwork, 16, 66560));
  CHECK(of_large(kNeverCut) == radix_of(kMpiNetwork, 16, 532480));
  CHECK(of_large(kMpiNetwork.slice_bytes) > of_large(kNeverCut));
  for (const Algorithm& algorithm : algorithms()) CHECK((algorithm.radix != nullptr) == (&algorithm == &two_level));
}

TEST_CASE("two-level: a radix below 2 is refused") {
  for (const int radix : {1, -1}) {
    PlanBuilder builder;
    const int ranks[] = {0, 1}, begins[] = {0, 1, 2};
    const KeyRange ranges[] = {{0, 1}, {1, 2}};
    CHECK_THROWS_AS(builder.join_blocks({ranks, ranges, 0}, begins, radix, builder.own({0, 1})), std::invalid_argument);
  }
}

}  // namespace tree_attn::test::two_level_test
