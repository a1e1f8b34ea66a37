// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What is counted while decoding: collectives, hops, merge steps, buffers; and what is in flight when (section 6).
#include "tree_attn/tests/support/decoding.hpp"

namespace tree_attn::test {
namespace {

constexpr std::int64_t kPerRank = 8;

std::unique_ptr<TensorWorkload> workload_for(int p) {
  return normal_workload(1200, {.batch = 2, .head_dim = 6, .value_dim = 5, .n_keys = kPerRank * p});
}

int floor_log2(int n) { return std::bit_width(static_cast<unsigned>(n)) - 1; }

}  // namespace

/// @tested{eq_10, eq. (10)}
TEST_CASE("decoders: the ring takes p - 1 hops, and holds two shards beside its own") {
  for (RankGroup* rank_group : rank_groups()) {
    const int p = rank_group->size();
    const auto workload = workload_for(p);
    const std::int64_t shard_bytes = kPerRank * workload->shape().bytes_per_position();
    for (const bool copied : {true, false}) {
      const Layout layout{mixed_grouping(p), even_ranges(kPerRank * p, p, kPerRank), copied};
      for (const RankResult& result : decode(*rank_group, find_algorithm("ring"), *workload, layout)) {
        // Every hop is one message of keys and one of values to the right neighbour; no collective at all.
        CHECK(result.traffic.messages == 2 * (p - 1));
        CHECK(result.traffic.bytes == (p - 1) * shard_bytes);
        CHECK(result.traffic.collectives == 0);
        // The own shard stays, for it is the cache: one buffer comes in while another goes out. With two ranks there is only
        // what comes in, and the own shard if it has to be packed to be sent.
        const int n_buffers = p == 1 ? 0 : p == 2 && copied ? 1 : 2;
        CHECK(result.traffic.buffer_kv_bytes == n_buffers * shard_bytes);
      }
    }
  }
}

TEST_CASE("decoders: the ring's buffers are those of the longest neighbours") {
  for (RankGroup* rank_group : rank_groups({3, 5})) {
    const int p = rank_group->size();
    if (p < 3) continue;
    const auto workload = workload_for(p);
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(p), 0);
    lengths[0] = kPerRank * p - 3;
    lengths[static_cast<std::size_t>(p) - 1] = 3;
    std::int64_t most = 0;
    for (const RankResult& result :
         decode(*rank_group, find_algorithm("ring"), *workload, {Topology::pretend(p, p), ranges_of_lengths(lengths)})) {
      most = std::max(most, result.traffic.buffer_kv_bytes);
    }
    CHECK(most == kPerRank * p * workload->shape().bytes_per_position());
  }
}

/// @tested{alg_3, Alg. 3}
/// @tested{thm_1, Thm. 1}
TEST_CASE("decoders: three collectives, two, one, and about log2 p merges in a row") {
  for (RankGroup* rank_group : rank_groups()) {
    const int p = rank_group->size();
    const auto workload = workload_for(p);
    for (const Topology& topology : groupings(p)) {
      const auto busiest = [&](std::string_view name) {
        Traffic most;
        for (const RankResult& result :
             decode(*rank_group, find_algorithm(name), *workload, {topology, even_ranges(kPerRank * p, p, kPerRank)})) {
          most.collectives = std::max(most.collectives, result.traffic.collectives);
          most.merge_steps = std::max(most.merge_steps, result.traffic.merge_steps);
        }
        return most;
      };
      INFO(p << " ranks on " << topology.n_nodes() << " nodes");
      CHECK(busiest("paper").collectives == 3);
      CHECK(busiest("packed").collectives == 2);
      CHECK(busiest("fused").collectives == 1);
      CHECK(busiest("gather").collectives == 1);
      CHECK(busiest("ring-state").collectives == 0);
      // ceil(log_j n) rounds in a node of n ranks, and ceil(log_k M) between nodes.
      const double state = 4.0 * static_cast<double>(workload->shape().n_rows() * (2 + workload->shape().value_dim));
      int inside = 0;
      bool is_flat = true;
      for (int node = 0; node < topology.n_nodes(); ++node) {
        const int n = static_cast<int>(topology.node(node).size());
        const int j = default_radix(kMpiNetwork.inside, kMpiNetwork.overhead_us, n, state);
        inside = std::max(inside, n_rounds(n, j)), is_flat = is_flat && n <= j;
      }
      const int radix =
          find_algorithm("two-level")
              .radix(topology, even_ranges(kPerRank * p, p, kPerRank), PlanOptions{}.for_shape(workload->shape()));
      CHECK(busiest("two-level").collectives == inside + n_rounds(topology.n_nodes(), radix));
      // Reduce and broadcast where a node has several ranks, doubling where there are several nodes.
      CHECK(busiest("leaders").collectives == (topology.n_nodes() < p ? 2 : 0) + (topology.n_nodes() > 1 ? 1 : 0));
      // One merge an exchange; one more where members are folded in first.
      const std::int64_t depth = floor_log2(p) + (std::has_single_bit(static_cast<unsigned>(p)) ? 0 : 1);
      CHECK(busiest("fused").merge_steps == depth);
      CHECK(busiest("paper").merge_steps == 3 * depth);
      // Everything gathered is merged here, one subtree after the other.
      CHECK(busiest("gather").merge_steps == p - 1);
      CHECK(busiest("ring").merge_steps == p - 1);
      CHECK(busiest("two-level").merge_steps <= p - 1);
      CHECK(busiest("leaders").merge_steps <= p - 1);
      if (topology.n_nodes() == 1 && is_flat) CHECK(busiest("two-level").merge_steps == p - 1);
      if (topology.n_nodes() == 1 && std::has_single_bit(static_cast<unsigned>(p)))
        CHECK(busiest("leaders").merge_steps == depth);
    }
  }
}

}  // namespace tree_attn::test
