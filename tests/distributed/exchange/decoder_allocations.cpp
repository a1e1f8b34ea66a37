// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The memory of decoders: from the second step on nothing is allocated on any rank.
#include "distributed/transport/thread_transport.hpp"
#include "tests/support/count_allocations.hpp"
#include "tests/support/decoding.hpp"

namespace tree_attn::test {

TEST_CASE("decoder: steps after the first of as many queries allocate nothing, in both orders, with one thread and two") {
  constexpr double kTimeout = 60;
  constexpr int kSteps = 4;
  for (const LeafOrder order : {LeafOrder::kContiguous, LeafOrder::kDealt}) {
    WorkloadShape shape{{.batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 16, .value_dim = 16}, 333, {}, order};
    shape.n_queries = 3;
    const auto workload = make_workload(shape, 1802, 1);
    const TensorView q = workload->query(0);
    for (const int p : {1, 2, 3, 5, 8}) {
      // Five leaves and a part: with eight ranks some are empty, and the ranges of some nodes are several subtrees.
      const std::vector<KeyRange> ranges =
          order == LeafOrder::kDealt ? dealt_ranges(p) : even_ranges(shape.n_keys, p, kLeafKeys);
      for (const Algorithm& algorithm : algorithms()) {
        INFO(algorithm.name << ", " << name_of(order) << ", " << p << " ranks");
        std::atomic<int> in_steps = -1, of_opening = -1;
        run_threads(mixed_grouping(p), kTimeout, [&](const ThreadRanks& ranks, ThreadTransport& transport) {
          const OwnedLeaves leaves(transport.topology().range_of(transport.rank(), ranges), order);
          OpenShard shard = open_shard(cpu_backend(order == LeafOrder::kDealt ? 2 : 1), shape, leaves, shape.n_keys, 0.3);
          const std::vector<std::int64_t> lengths = workload->lengths(0);
          for (int rank = 0; rank < p; ++rank) {  // the workload is one for all
            if (rank == transport.rank()) fill(*shard.cache, *workload, lengths);
            ranks.barrier();
          }
          // Only where all ranks stand still, the number is that of all.
          const auto allocations = [&] {
            ranks.barrier();
            const int n = n_allocations;
            ranks.barrier();
            return n;
          };
          const int before = allocations();
          const std::unique_ptr<Decoder> decoder = algorithm.open(transport, shard, ranges);
          const int opened = allocations();
          // Memory for more queries than before drops the plans of fewer.
          for (const std::int64_t l : {1, 3, 1}) decoder->step({q.positions(0, l), lengths});
          const int after_first_step = allocations();
          for (int step = 1; step < kSteps; ++step) decoder->step({q.positions(0, step % 2 == 0 ? 3 : 1), lengths});
          const int at_end = allocations();
          if (ranks.rank() == 0) of_opening = opened - before, in_steps = at_end - after_first_step;
        });
        CHECK(in_steps.load() == 0);
        CHECK(of_opening > 0);  // the counter counts
      }
    }
  }
}

}  // namespace tree_attn::test
