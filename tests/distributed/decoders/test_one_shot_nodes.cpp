// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `one-shot` on several nodes: kernels inside them, plans between them; the bits of `gather`, the predicted counts,
/// and a rank of another node that is missing.
#include "tree_attn/distributed/plan/plan_builder.hpp"
#include "tree_attn/gpu/backend/one_shot_session.hpp"
#include "tree_attn/gpu/engine/peers.hpp"
#include "tree_attn/tests/support/one_shot_runs.hpp"
#include "tree_attn/tests/support/sanitized.hpp"

#include <chrono>

namespace tree_attn::test::one_shot {

/// Two and three nodes of one to four ranks, of equal and of different sizes; in one case the ranks of a node are not
/// neighbours.
static const std::vector<std::vector<int>> kNodes{
    {0, 1},          {0, 0, 1},       {0, 1, 1},          {0, 1, 2},          {0, 0, 1, 1},
    {0, 0, 0, 1},    {0, 1, 0, 1},    {0, 0, 1, 1, 2},    {0, 1, 1, 1, 2},    {0, 0, 1, 1, 2, 2},
    {0, 0, 0, 0, 1}, {0, 1, 1, 2, 2}, {0, 0, 0, 0, 1, 1}, {0, 0, 0, 1, 1, 1}, {0, 0, 0, 0, 1, 1, 1, 1},
};

static Run run_on(const std::vector<int>& nodes) { return {.p = static_cast<int>(nodes.size()), .nodes = nodes}; }

/// Shards of several leaves, more query tiles than blocks, and a last range that doubles on the way. Types, queries, cuts,
/// seeds and devices in turn.
/// @tested{alg_3, Alg. 3}
TEST_CASE("one-shot on nodes: no bit differs from gather, and the counts are those predicted") {
  constexpr std::pair<DType, int> kRows[]{{DType::F32, 1}, {DType::BF16, 4}, {DType::BF16, 1}, {DType::F32, 4}};
  constexpr int kMajors[]{9, 8, 12};
  int n = 0;
  for (const std::vector<int>& nodes : kNodes) {
    for (int i = 0; i < 2; ++i) {
      if (kIsSanitized && n % 5 != 0) {
        ++n;
        continue;
      }
      Run run = run_on(nodes);
      const auto& [dtype, group] = kRows[(n + n / 4) % 4];
      run.cut = static_cast<Cut>(n / 2 % 4), run.dtype = dtype, run.group = group;
      run.seed = static_cast<std::uint64_t>(n % 5), run.major = kMajors[(n + n / 3) % 3];
      ++n;
      CHECK(opens_new_windows(run, 510));
      CHECK(check_run(run, 510).bytes_between_nodes > 0);
    }
  }
}

TEST_CASE("one-shot on nodes: rows in slices between nodes have the bits of gather, and send less") {
  for (const std::vector<int>& nodes : {std::vector{0, 0, 1, 1}, {0, 0, 1, 1, 2, 2}, {0, 0, 0, 1, 1, 1}}) {
    Run run = run_on(nodes);
    run.steps = 3;
    const Traffic together = check_run(run, 510);
    run.slice_bytes = 0;
    const auto per_node = std::count(nodes.begin(), nodes.end(), 0);
    CHECK(per_node * check_run(run, 510).bytes_between_nodes == together.bytes_between_nodes);
  }
}

TEST_CASE("one-shot on nodes: nodes without keys, one rank of which is slow") {
  Run run = run_on({0, 0, 1, 1, 2});
  run.steps = 6, run.cut = Cut::kLast, run.seed = 1, run.slow_rank = 1;
  CHECK(ranges_of_nodes(topology_of(run), ranges_of(run, 300))[1].empty());
  check_run(run, 300);
}

/// An owner sends the states of the node in place of the finished row; a node may have several subtrees.
TEST_CASE("one-shot on nodes: beyond 128 KiB of states rows have owners, and no bit differs") {
  int n = 0;
  for (const std::vector<int>& nodes : {std::vector{0, 0, 0, 1, 1}, {0, 1, 1, 2}}) {
    if (kIsSanitized && nodes.size() > 4) continue;  // it takes more than five minutes
    Run run = run_on(nodes);
    run.steps = kIsSanitized ? 1 : 2, run.cut = Cut::kUneven, run.group = 33, run.head_dim = 256, run.seed = 2,
    run.slow_rank = 1;
    run.dtype = n++ == 0 ? DType::F32 : DType::BF16;
    constexpr std::int64_t kKeys = 510;
    const std::vector<KeyRange> ranges = closed(ranges_of(run, kKeys), kKeys + run.steps);
    CHECK(Peers::of(members_of_node(topology_of(run), 0, ranges).ranges, 0, 2 * 2 * 33, 256, true).has_owners);
    check_run(run, kKeys);
  }
  // Of 1000 rows the ranks own 334, 333 and 333. They store two states for each, in six packets, or one finished row.
  const std::vector<KeyRange> node{{0, 64}, {64, 192}, {192, 192}};
  CHECK(n_subtrees(0, 192) == 2);
  CHECK(one_shot_bytes(node, 1, 0, 1000, 16, true).rows == 16 * 333 * 2 * 6);
  CHECK(one_shot_bytes(node, 1, 0, 1000, 16, false).rows == 16 * 333 * 6);
  CHECK(one_shot_bytes(node, 1, 0, 1000, 16, true).states == one_shot_bytes(node, 1, 0, 1000, 16, false).states);
  CHECK(one_shot_window_bytes(node, 1000, 16, true) == (2 * 4 * 334 * 6 + 1000 * 2 * 6) * 16);
}

TEST_CASE("one-shot on nodes: windows in host memory, and any radix, change no bit") {
  for (const int radix : {2, 3}) {
    Run run = run_on({0, 0, 1, 1, 1, 2, 3});
    run.cut = Cut::kUneven, run.group = 2, run.windows_on_host = radix == 2, run.radix = radix;
    INFO("radix " << radix);
    // The kernel, and two rounds between four nodes.
    CHECK(check_run(run, 700).collectives == 3);
  }
}

/// @tested{alg_3, Alg. 3}
TEST_CASE("one-shot on nodes: predicted are the stores of each node and the rounds of two-level between nodes") {
  for (const auto& [n_nodes, n_ranks, radix, n_rounds] :
       {std::tuple(2, 4, 2, 1), {4, 2, 4, 1}, {4, 2, 2, 2}, {8, 1, 2, 3}, {2, 16, 2, 1}}) {
    const int p = n_nodes * n_ranks;
    CAPTURE(p);
    CAPTURE(radix);
    // 4 rows; a state of 18 floats is six packets, and has 72 bytes. A rank holds one leaf, a node one aligned subtree.
    const Run run{.p = p};
    const WorkloadShape shape = shape_of(run, 64 * p);
    const Topology topology = Topology::pretend(p, n_ranks);
    const PlanOptions options{.radix = radix, .node_radix = kMostOneShotRanks};
    const auto predict_by = [&](const char* algorithm) {
      return predict(find_algorithm(algorithm), shape, topology, ranges_of(run, 64 * p), options, kPaperCluster);
    };
    const Prediction predicted = predict_by("one-shot"), two_level = predict_by("two-level");
    CHECK(find_algorithm("one-shot").radix(topology, ranges_of(run, 64 * p), options.for_step(shape, 1)) == radix);
    const std::int64_t stores = p * (n_ranks - 1), messages = p * (radix - 1) * n_rounds;
    CHECK(predicted.rounds == (n_ranks > 1 ? 1 : 0) + n_rounds);
    CHECK(predicted.messages == stores + messages);
    CHECK(predicted.bytes == stores * 4 * 6 * 16 + messages * 4 * 72);
    CHECK(predicted.bytes_between_nodes == messages * 4 * 72);
    CHECK(predicted.bytes_between_nodes == two_level.bytes_between_nodes);
    CHECK(predicted.collectives == 1 + n_rounds);
    CHECK(predicted.merge_steps == n_ranks - 1 + n_rounds * (radix - 1));
    CHECK(predicted.merge_steps == two_level.merge_steps);
    // Keys, values, queries; own states; the window; the states of the node, again as blocks, with those received; output.
    const std::int64_t window = 2 * n_ranks * 4 * 6 * 4, received = n_rounds * (radix - 1);
    CHECK(predicted.peak_elements == 64 * 4 * 2 * 16 + 4 * 16 + 4 * 18 + window + (2 + received) * 4 * 18 + 4 * 17);
  }
  // One node has nothing to join, so it has no radix.
  const Run run{.p = 4};
  CHECK(find_algorithm("one-shot").radix(topology_of(run), ranges_of(run, 256), {}) == 0);
}

/// The other rank of its node waits in its kernel; the other node waits for messages of both.
TEST_CASE("one-shot on nodes: a rank that hangs ends its node within the deadline, and the job with it") {
  const auto start = std::chrono::steady_clock::now();
  std::set<std::string> lines;
  const std::string line =
      without_rank(run_on({0, 0, 1, 1}), 1, 0.5, lines, [](Transport&, std::latch& others) { others.wait(); });
  CAPTURE(line);
  CHECK(line.starts_with("rank 0, step 2: no states from rank 1, row "));
  CHECK(line.ends_with(", for 0.5 s"));
  REQUIRE(lines.size() == 3);
  CHECK(*lines.begin() == line);
  CHECK(lines.contains("rank 2 gave up: another rank failed"));
  CHECK(lines.contains("rank 3 gave up: another rank failed"));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}

}  // namespace tree_attn::test::one_shot
