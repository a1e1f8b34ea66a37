// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Counted is predicted: messages and bytes of every algorithm against closed formulas, ours and the paper's (eq.
/// (8)-(14)).
#include "distributed/measure/predict.hpp"

#include <numeric>

#include "reference/oracle/cost_model.hpp"
#include "tests/support/decoding.hpp"

namespace tree_attn::test {
namespace {

/// Keys on every rank: one aligned subtree.
constexpr std::int64_t kPerRank = 16;
const Axes kAxes{
    .batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 6, .value_dim = 5, .n_queries = 3, .storage = Storage::BF16};

/// Sums over ranks; the busiest rank's collectives and merge steps.
Traffic totals(const std::vector<Seen>& seen) {
  Traffic total;
  for (const auto& [output, traffic] : seen) {
    total.messages += traffic.messages;
    total.bytes += traffic.bytes;
    total.bytes_between_nodes += traffic.bytes_between_nodes;
    total.collectives = std::max(total.collectives, traffic.collectives);
    total.merge_steps = std::max(total.merge_steps, traffic.merge_steps);
    total.buffer_kv_bytes = std::max(total.buffer_kv_bytes, traffic.buffer_kv_bytes);
  }
  return total;
}

std::unique_ptr<TensorProblem> problem_for(int p, Axes axes = kAxes) {
  axes.n_keys = kPerRank * p;
  return normal_problem(1, axes);
}

std::vector<Run> aligned_runs(int p) { return even_runs(kPerRank * p, p, kPerRank); }

/// Whether nodes and their joined runs are aligned subtrees: equal nodes of 2^i ranks, any number of them up to 2^j.
bool joins_are_aligned(const Topology& topology) {
  const auto is_power = [](int n) { return std::has_single_bit(static_cast<unsigned>(n)); };
  for (int node = 0; node < topology.n_nodes(); ++node) {
    if (topology.node(node).size() != topology.node(0).size()) return false;
  }
  return is_power(topology.n_nodes()) && is_power(static_cast<int>(topology.node(0).size()));
}

}  // namespace

/// @tested{eq_10, eq. (10)}
TEST_CASE("predict: messages and bytes, all and between nodes, are those that were counted") {
  int n_aligned = 0;
  for (World* world : worlds({1, 2, 3, 4, 5, 6, 7, 8, 9})) {
    const int p = world->size();
    const auto problem = problem_for(p);
    for (const Topology& topology : groupings(p)) {
      const Layout layout{topology, aligned_runs(p)};
      n_aligned += joins_are_aligned(topology);
      for (const Algorithm& algorithm : algorithms()) {
        INFO(algorithm.name << ", " << layout.text());
        const Traffic counted = totals(decode(*world, algorithm, *problem, layout));
        const Prediction predicted = predict(algorithm.name, problem->shape(), topology);
        CHECK(counted.messages == predicted.messages);
        CHECK((counted.bytes_between_nodes == 0) == (topology.n_nodes() == 1));
        if (algorithm.name != "two-level" || joins_are_aligned(topology)) {
          CHECK(counted.bytes == predicted.bytes);
          CHECK(counted.bytes_between_nodes == predicted.bytes_between_nodes);
        } else {
          // Joined runs that are no subtree cost more than one state.
          CHECK(counted.bytes >= predicted.bytes);
          CHECK(counted.bytes <= 4 * predicted.bytes);
          CHECK(counted.bytes_between_nodes >= predicted.bytes_between_nodes);
        }
      }
    }
  }
  CHECK(n_aligned == 11);
}

/// @tested{eq_13, eq. (13)}
/// @tested{eq_14, eq. (14)}
TEST_CASE("predict: doubling sends more than the paper's bandwidth-optimal AllReduce, by a known factor") {
  for (World* world : worlds({2, 4, 8})) {
    const int p = world->size();
    Axes axes = kAxes;
    axes.n_queries = 1;
    axes.kv_heads = axes.heads;
    const auto problem = problem_for(p, axes);
    const Topology topology = Topology::pretend(p, p);
    const Traffic counted = totals(decode(*world, find_algorithm("paper"), *problem, {topology, aligned_runs(p)}));
    // In the paper's letters: numerator bd, denominator and max bn_h each.
    const CostShape cost{.b = axes.batch, .t = kPerRank, .d = axes.heads * axes.value_dim, .n_h = axes.heads, .p = p};
    // Every rank sends the whole in each of log2 p rounds, where the optimum is 2 (p - 1) / p times the whole.
    const double paper = p * to_bytes(tree_volume(cost), 4), rounds = std::log2(p);
    CHECK(predict("paper", problem->shape(), topology).paper_bytes == doctest::Approx(paper).epsilon(1e-14));
    CHECK(static_cast<double>(counted.bytes) == doctest::Approx(paper * rounds / (2.0 * (p - 1) / p)).epsilon(1e-14));
    // At p = 2 the two are one.
    if (p == 2) CHECK(static_cast<double>(counted.bytes) == paper);
    // It does not depend on the length.
    axes.n_keys = 5 * kPerRank * p;
    const auto longer = normal_problem(1, axes);
    CHECK(totals(decode(*world, find_algorithm("paper"), *longer, {topology, even_runs(axes.n_keys, p, 1)})).bytes ==
          counted.bytes);
  }
}

/// @tested{eq_8, eq. (8)}
/// @tested{eq_10, eq. (10)}
TEST_CASE("predict: the ring sends 2btd x p in each of p - 1 steps") {
  for (World* world : worlds({1, 2, 3, 5, 8})) {
    const int p = world->size();
    Axes axes = kAxes;
    axes.kv_heads = axes.heads;
    axes.value_dim = axes.head_dim;
    const auto problem = problem_for(p, axes);
    const Topology topology = Topology::pretend(p, 2);
    const CostShape cost{.b = axes.batch, .t = kPerRank, .d = axes.heads * axes.head_dim, .n_h = axes.heads, .p = p};
    const double paper = to_bytes(static_cast<double>(ring_volume(cost)), 2) * (p - 1);
    const Prediction predicted = predict("ring", problem->shape(), topology);
    CHECK(static_cast<double>(totals(decode(*world, find_algorithm("ring"), *problem, {topology, aligned_runs(p)})).bytes) ==
          paper);
    CHECK(predicted.paper_bytes == paper);
    // Eq. (8): 4btd for the keys and values here and those that come in, and 2bd for query and output.
    CHECK(predicted.peak_elements ==
          static_cast<double>(ring_peak_memory(cost)) + static_cast<double>(2 * axes.batch * (axes.n_queries - 1) * cost.d));
  }
}

/// @tested{eq_9, eq. (9)}
TEST_CASE("predict: a rank of the tree holds its own keys and values, and states") {
  const auto problem = problem_for(4, {.batch = 2, .heads = 4, .kv_heads = 4, .head_dim = 6, .value_dim = 6});
  const CostShape cost{.b = 2, .t = kPerRank, .d = 24, .n_h = 4, .p = 4};
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.name == "ring") continue;
    CHECK(predict(algorithm.name, problem->shape(), Topology::pretend(4, 2)).peak_elements ==
          static_cast<double>(tree_peak_memory(cost)));
  }
}

}  // namespace tree_attn::test
