// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Counted is predicted: messages and bytes of every algorithm against closed formulas, ours and the paper's (eq.
/// (8)-(14)).
#include "distributed/exchange/plan_builder.hpp"
#include "distributed/program/predict.hpp"
#include "reference/oracle/cost_model.hpp"
#include "tests/support/decoding.hpp"
#include "tests/support/message.hpp"

#include <map>
#include <stdexcept>

namespace tree_attn::test {
namespace {

/// Keys on every rank: one aligned subtree.
constexpr std::int64_t kPerRank = kLeafKeys;
const Axes kAxes{.batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 6, .value_dim = 5, .n_queries = 3, .dtype = DType::BF16};

std::unique_ptr<TensorWorkload> workload_for(int p, Axes axes = kAxes) {
  axes.n_keys = kPerRank * p;
  return normal_workload(1, axes);
}

std::vector<KeyRange> aligned_ranges(int p) { return even_ranges(kPerRank * p, p, kPerRank); }

/// Tests whether nodes and their joined runs are aligned subtrees: equal nodes of 2^i ranks, any number of them up to 2^j.
bool joins_are_aligned(const Topology& topology) {
  return topology.has_equal_nodes() && std::has_single_bit(static_cast<unsigned>(topology.n_nodes())) &&
         std::has_single_bit(topology.node(0).size());
}

/// Messages and bytes in closed form, where every rank's range is one aligned subtree. With S = 4 n_rows (2 + d_v) bytes of
/// states, p ranks and M leaders of nodes,
///
///     AllReduce by doubling:  A(p) = m log2 m + 2 (p - m) messages, m the largest power of two <= p
///     paper       A(p) (4 n_rows + 4 n_rows d_v + 4 n_rows)       packed, fused   A(p) of 4 n_rows (2 + d_v)
///     gather      p (p - 1) S        ring-state  p (p - 1) S       ring            (p - 1) times the whole cache
///     leaders     (p - M) S + A(M) S + (p - M) 4 n_rows (1 + d_v)
///     two-level   in test_two_level.cpp
///
/// Of the busiest rank: its collectives; and its merges, one an exchange of a doubling, and one of each state that it
/// gathers.
struct ClosedForm {
  std::int64_t messages = 0, bytes = 0, rounds = 0, collectives = 0, merge_steps = 0;
  bool bytes_are_exact = true;  ///< else the least: joined ranges that are no subtree cost more than one state
  bool rounds_are_exact =
      true;  ///< else the most, of merges too: leaders of small nodes may start before those of the largest
};

int ceil_log2(std::int64_t n) { return std::bit_width(static_cast<std::uint64_t>(n - 1)); }
std::int64_t doubling_messages(std::int64_t p) {
  const auto m = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(p)));
  return m * ceil_log2(m) + 2 * (p - m);
}
/// Each of the r = p - m ranks beyond m is folded into a neighbour first. Their contributions reach all others one round
/// later; the result reaches another folded rank yet one later, if two of them are log2 m exchanges apart: if r > m / 2.
std::int64_t doubling_rounds(std::int64_t p) {
  const auto m = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(p)));
  return ceil_log2(m) + (p > m ? 1 : 0) + (2 * (p - m) > m ? 1 : 0);
}

std::map<std::string_view, ClosedForm> closed_forms(const WorkloadShape& shape, const Topology& topology) {
  const std::int64_t p = topology.size(), M = topology.n_nodes(), n_rows = shape.n_rows();
  const std::int64_t S = 4 * n_rows * (2 + shape.value_dim), output = 4 * n_rows * (1 + shape.value_dim);
  std::int64_t largest_node = 0;
  for (int i = 0; i < M; ++i) largest_node = std::max(largest_node, static_cast<std::int64_t>(topology.node(i).size()));
  const std::int64_t A = doubling_messages(p), R = doubling_rounds(p), A_M = doubling_messages(M);
  const std::int64_t depth = ceil_log2(p);
  // Leaders reduce and broadcast where a node has several ranks, and double where there are several nodes.
  return {{"paper", {3 * A, A * S, 3 * R, 3, 3 * depth}},
          {"packed", {2 * A, A * S, 2 * R, 2, 2 * depth}},
          {"fused", {A, A * S, R, 1, depth}},
          {"gather", {p * ceil_log2(p), p * (p - 1) * S, ceil_log2(p), 1, p - 1}},
          {"ring-state", {p * (p - 1), p * (p - 1) * S, p - 1, 0, p - 1}},
          {"ring", {2 * p * (p - 1), (p - 1) * shape.n_keys * shape.bytes_per_position(), p - 1, 0, p - 1}},
          {"leaders",
           {2 * (p - M) + A_M, (p - M) * (S + output) + A_M * S, 2 * ceil_log2(largest_node) + doubling_rounds(M),
            (M < p ? 2 : 0) + (M > 1 ? 1 : 0), M == 1 && std::has_single_bit(static_cast<std::uint64_t>(p)) ? depth : p - 1,
            joins_are_aligned(topology), false}}};
}

}  // namespace

/// @tested{eq_8, eq. (8)}
/// @tested{eq_9, eq. (9)}
/// @tested{eq_10, eq. (10)}
TEST_CASE("predict: keys and values held: 2btd in the tree, 4btd and 6btd in the ring, which sends 2btd p times p - 1") {
  for (RankGroup* rank_group : rank_groups({2, 3, 4, 8})) {
    const int p = rank_group->size();
    Axes axes = kAxes;
    axes.kv_heads = axes.heads;
    axes.value_dim = axes.head_dim;
    axes.n_queries = 1;
    const auto workload = workload_for(p, axes);
    const CostShape cost{.b = axes.batch, .t = kPerRank, .d = axes.heads * axes.head_dim, .n_h = axes.heads, .p = p};
    const std::int64_t btd = cost.b * cost.t * cost.d, bf16 = 2;
    for (const Algorithm& algorithm : algorithms()) {
      CAPTURE(algorithm.name);
      const bool is_ring = algorithm.kv_shards_in_flight > 0;
      for (const bool copied : {true, false}) {
        const Layout layout{Topology::pretend(p, 2), aligned_ranges(p), copied};
        std::int64_t in_buffers = 0, sent = 0;
        for (const RankResult& rank : decode(*rank_group, algorithm, *workload, layout))
          in_buffers = std::max(in_buffers, rank.traffic.buffer_kv_bytes), sent += rank.traffic.bytes;
        // What is not dense has to be packed to be sent.
        CHECK(2 * btd * bf16 + in_buffers == (!is_ring ? 2 : p == 2 && copied ? 4 : 6) * btd * bf16);
        if (copied)
          CHECK(predict(algorithm, workload->shape(), layout.topology, layout.ranges).peak_kv_bytes ==
                2 * btd * bf16 + in_buffers);
        if (is_ring) CHECK(static_cast<double>(sent) == to_bytes(static_cast<double>(ring_volume(cost)), bf16) * (p - 1));
      }

      // Keys and values in their type, and states in F32.
      const Prediction predicted = predict(algorithm, workload->shape(), Topology::pretend(p, 2), aligned_ranges(p));
      const std::int64_t kv_elements = predicted.peak_kv_bytes / bf16, bd = axes.batch * cost.d;
      const std::int64_t state = bd / axes.head_dim * (2 + axes.head_dim), output = bd / axes.head_dim * (1 + axes.head_dim);
      CHECK(predicted.peak_bytes == bf16 * kv_elements + 4 * (predicted.peak_elements - kv_elements));
      CHECK(!predicted.step_us);
      if (p != 4) continue;
      if (is_ring) {  // the states of all four sources, and joined
        CHECK(predicted.peak_elements == 3 * 2 * btd + bd + 2 * p * state + output);
      } else {
        // Ours hold an output as well, and the states of up to three other ranks; the paper reduces in place, and its
        // output too.
        CHECK(predicted.peak_elements >= tree_peak_memory(cost));
        CHECK(predicted.peak_elements <= tree_peak_memory(cost) + 4 * state + output);
      }
    }
  }
}

/// @tested{eq_10, eq. (10)}
/// @tested{thm_1, Thm. 1}
TEST_CASE("predict: sums over plans are the closed formulas where ranges are aligned subtrees") {
  int n_aligned = 0;
  for (int p = 1; p <= 33; ++p) {
    const auto workload = workload_for(p);
    for (const Topology& topology : groupings(p)) {
      n_aligned += joins_are_aligned(topology);
      const auto closed = closed_forms(workload->shape(), topology);
      for (const auto& [name, expected] : closed) {
        INFO(name << " on " << p << " ranks and " << topology.n_nodes() << " nodes");
        const Algorithm& algorithm = find_algorithm(name);
        const Prediction predicted = predict(algorithm, workload->shape(), topology, aligned_ranges(p));
        CHECK(predicted.messages == expected.messages);
        CHECK((predicted.bytes_between_nodes == 0) == (topology.n_nodes() == 1));
        CHECK(predicted.bytes >= expected.bytes);
        CHECK(predicted.bytes <= (expected.bytes_are_exact ? 1 : 4) * expected.bytes);
        CHECK(predicted.rounds <= expected.rounds);
        CHECK(predicted.collectives == expected.collectives);
        CHECK(predicted.merge_steps <= expected.merge_steps);
        if (!expected.rounds_are_exact) continue;
        CHECK(predicted.rounds == expected.rounds);
        CHECK(predicted.merge_steps == expected.merge_steps);
      }
    }
  }
  CHECK(n_aligned > 11);
}

TEST_CASE("predict: between two nodes leaders send one state each way, two-level and doubling over ranks one per rank") {
  const auto workload = workload_for(8);
  const Topology topology = Topology::pretend(8, 4);
  const std::int64_t state = 4 * workload->shape().n_rows() * (2 + workload->shape().value_dim);
  const auto between_nodes = [&](std::string_view name) {
    return predict(find_algorithm(name), workload->shape(), topology, aligned_ranges(8)).bytes_between_nodes;
  };
  CHECK(between_nodes("leaders") == 2 * state);
  CHECK(between_nodes("two-level") == 8 * state);
  CHECK(between_nodes("fused") == 8 * state);
}

/// Rank 0 sends a block to rank 1, which expects kMore more.
template <bool kSends, bool kReceives, int kMore = 0>
static Plan plan_of_two(const Topology&, int rank, std::span<const KeyRange>, const PlanOptions&) {
  PlanBuilder builder;
  const Blocks blocks = builder.allocate(kScalarBlock, 1 + kMore * rank);
  builder.exchange();
  if (kSends && rank == 0) builder.send(1, blocks);
  if (kReceives && rank == 1) builder.receive(0, blocks);
  return builder.take();
}

TEST_CASE("predict: the rounds of a ring over 1024 ranks are walked through, those of more are not") {
  WorkloadShape shape = workload_for(1)->shape();
  for (const auto& [p, why] : {std::pair{1024, ""}, {1025, "the rounds of 1025 ranks are too many to walk through"}}) {
    shape.n_keys = kPerRank * p;
    CHECK(why_not_predicted(find_algorithm("ring"), shape, Topology::pretend(p, 8), aligned_ranges(p)) == why);
    CHECK(why_not_predicted(find_algorithm("two-level"), shape, Topology::pretend(p, 8), aligned_ranges(p)).empty());
  }
}

TEST_CASE("predict: plans that do not fit each other are an error") {
  const auto workload = workload_for(2);
  const auto refused = [&](PlanOf plan) {
    return message<std::logic_error>([&] {
      predict({.name = "", .brief = "", .exchange = plan}, workload->shape(), Topology::pretend(2, 2), aligned_ranges(2));
    });
  };
  CHECK(refused(plan_of_two<true, true>) == "");
  CHECK(refused(plan_of_two<true, false>) == "rank 0 sends a message that rank 1 does not receive");
  CHECK(refused(plan_of_two<false, true>) == "rank 1 waits for a message that no rank sends");
  CHECK(refused(plan_of_two<true, true, 1>) == "rank 0 sends 96 bytes to rank 1, which expects 192");
}

/// @tested{eq_13, eq. (13)}
/// @tested{eq_14, eq. (14)}
TEST_CASE("predict: doubling sends more than the paper's bandwidth-optimal AllReduce, by a known factor") {
  for (const int p : {2, 4, 8}) {
    Axes axes = kAxes;
    axes.n_queries = 1;
    axes.kv_heads = axes.heads;
    const WorkloadShape shape = workload_for(p, axes)->shape();
    const auto bytes =
        static_cast<double>(predict(find_algorithm("paper"), shape, Topology::pretend(p, p), aligned_ranges(p)).bytes);
    // In the paper's letters: numerator bd, denominator and max bn_h each; none depends on the length.
    const CostShape cost{.b = axes.batch, .t = kPerRank, .d = axes.heads * axes.value_dim, .n_h = axes.heads, .p = p};
    // Every rank sends the whole in each of log2 p rounds, where the optimum is 2 (p - 1) / p times the whole.
    const double paper = p * to_bytes(tree_volume(cost), 4), rounds = std::log2(p);
    CHECK(bytes == doctest::Approx(paper * rounds / (2.0 * (p - 1) / p)).epsilon(1e-14));
    // At p = 2 the two are one.
    if (p == 2) CHECK(bytes == paper);
  }
}

TEST_CASE("dealt: a step sends one subtree per rank for p = 2^a, whatever the number of keys, and plans never change") {
  const auto shape_of = [](LeafOrder order, std::int64_t n) {
    return WorkloadShape{{.batch = 3, .heads = 2, .kv_heads = 1, .head_dim = 4, .value_dim = 3}, n, {}, order};
  };
  for (const int p : {2, 4, 8, 16}) {
    const Topology topology = Topology::pretend(p, 4);
    for (const Algorithm& algorithm : algorithms()) {
      if (!algorithm.keeps_bits || algorithm.kv_shards_in_flight > 0) continue;
      // As even chunks of a power of two of keys, the best that the contiguous order can do.
      const std::int64_t bytes =
          predict(algorithm, shape_of(LeafOrder::kContiguous, 1 << 20), topology, even_ranges(1 << 20, p, kLeafKeys)).bytes;
      for (const std::int64_t n : {64, 1000, 80000, 1000003})
        CHECK(predict(algorithm, shape_of(LeafOrder::kDealt, n), topology, dealt_ranges(p)).bytes == bytes);
    }
  }
}

}  // namespace tree_attn::test
