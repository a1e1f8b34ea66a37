// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The memory of decoders: from the second step on nothing is allocated on any rank.
#include "tree_attn/distributed/transport/thread_transport.hpp"
#include "tree_attn/tests/support/count_allocations.hpp"
#include "tree_attn/tests/support/decoding.hpp"

namespace tree_attn::test {

TEST_CASE("decoder: steps after the first allocate nothing") {
  constexpr double kTimeout = 60;
  constexpr std::int64_t kKeys = 333;
  constexpr int kSteps = 4;
  const auto workload = normal_workload(1800, {.batch = 2, .heads = 4, .kv_heads = 2, .n_keys = kKeys});
  const TensorView q = workload->query(0);
  for (const int p : {1, 2, 3, 5, 8}) {
    // Five leaves and a part: with eight ranks some are empty, and the ranges of some nodes are several subtrees.
    const std::vector<KeyRange> ranges = even_ranges(kKeys, p, kLeafKeys);
    for (const Algorithm& algorithm : algorithms()) {
      CAPTURE(algorithm.name);
      CAPTURE(p);
      std::atomic<int> in_steps = -1, of_opening = -1;
      run_threads(mixed_grouping(p), kTimeout, [&](const ThreadRanks& ranks, ThreadTransport& transport) {
        const KeyRange own = transport.topology().range_of(transport.rank(), ranges);
        OpenShard shard = open_shard(cpu_backend(), q, workload->shard(own), workload->lengths(), workload->scale);
        ranks.barrier();
        const int before = n_allocations;
        const std::unique_ptr<Decoder> decoder = algorithm.open(transport, shard, ranges);
        ranks.barrier();
        if (ranks.rank() == 0) of_opening = n_allocations - before;
        decoder->step({q, workload->lengths()});

        ranks.barrier();
        const int after_first_step = n_allocations;
        ranks.barrier();
        for (int step = 1; step < kSteps; ++step) decoder->step({q, workload->lengths()});
        ranks.barrier();
        if (ranks.rank() == 0) in_steps = n_allocations - after_first_step;
        ranks.barrier();
      });
      CHECK(in_steps == 0);
      CHECK(of_opening > 0);  // the counter counts
    }
  }
}

TEST_CASE("decoder: in the dealt order, with two threads a rank, steps after the first allocate nothing") {
  constexpr double kTimeout = 60;
  constexpr int kSteps = 4;
  const WorkloadShape shape{
      {.dtype = DType::F32, .value_dtype = DType::F32, .heads = 4, .kv_heads = 2, .head_dim = 16, .value_dim = 16},
      333,
      {},
      LeafOrder::kDealt};
  const auto workload = make_workload(shape, 1802, 1);
  const TensorView q = workload->query(0);
  for (const int p : {1, 3, 8}) {
    const std::vector<KeyRange> ranges = dealt_ranges(p);
    for (const Algorithm& algorithm : algorithms()) {
      CAPTURE(algorithm.name);
      CAPTURE(p);
      std::atomic<int> in_steps = -1;
      run_threads(mixed_grouping(p), kTimeout, [&](const ThreadRanks& ranks, ThreadTransport& transport) {
        const OwnedLeaves leaves(transport.topology().range_of(transport.rank(), ranges), shape.order);
        OpenShard shard = open_shard(cpu_backend(2), shape, leaves, leaves.n_keys(shape.n_keys), 0.3);
        const std::vector<std::int64_t> lengths = workload->lengths(0);
        for (int rank = 0; rank < p; ++rank) {  // the workload is one for all
          if (rank == transport.rank()) fill(*shard.cache, *workload, lengths);
          ranks.barrier();
        }
        const std::unique_ptr<Decoder> decoder = algorithm.open(transport, shard, ranges);
        decoder->step({q, lengths});

        ranks.barrier();
        const int after_first_step = n_allocations;
        ranks.barrier();
        for (int step = 1; step < kSteps; ++step) decoder->step({q, lengths});
        ranks.barrier();
        if (ranks.rank() == 0) in_steps = n_allocations - after_first_step;
        ranks.barrier();
      });
      CHECK(in_steps == 0);
    }
  }
}

}  // namespace tree_attn::test
