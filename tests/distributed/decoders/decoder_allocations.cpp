// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief From the second step on, a decode step allocates nothing on any rank: local decode, messages, merges and output.
#include "distributed/transport/thread_transport.hpp"
#include "tests/support/count_allocations.hpp"
#include "tests/support/decoding.hpp"

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
        ShardDecoder shard = open_shard(cpu_backend(), q, workload->shard(own), workload->lengths(), workload->scale);
        ranks.barrier();
        const int before = n_allocations;
        const std::unique_ptr<Decoder> decoder = algorithm.open(transport, shard, ranges);
        ranks.barrier();
        if (ranks.rank() == 0) of_opening = n_allocations - before;
        decoder->step(q, workload->lengths());

        ranks.barrier();
        const int after_first_step = n_allocations;
        ranks.barrier();
        for (int step = 1; step < kSteps; ++step) decoder->step(q, workload->lengths(), step == 1 ? kLift : 0);
        ranks.barrier();
        if (ranks.rank() == 0) in_steps = n_allocations - after_first_step;
        ranks.barrier();
      });
      CHECK(in_steps == 0);
      CHECK(of_opening > 0);  // the counter counts
    }
  }
}

}  // namespace tree_attn::test
