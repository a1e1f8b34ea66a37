// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The memory of decoders whose ranks are processes: from the second step on a rank allocates nothing, over MPI and
/// through shared memory. mpirun -n P mpi_allocations; decoder_allocations.cpp has ranks that are threads.
#include "tests/support/count_allocations.hpp"
#include "tests/support/decoding.hpp"

namespace tree_attn::test {

TEST_CASE("decoder: steps after the first allocate nothing, over MPI and through shared memory") {
  constexpr std::int64_t kKeys = 333;
  constexpr int kSteps = 4;
  const auto workload = normal_workload(1800, {.batch = 2, .heads = 4, .kv_heads = 2, .n_keys = kKeys});
  const TensorView q = workload->query(0);
  for (RankGroup* rank_group : rank_groups()) {
    const int p = rank_group->size();
    const std::vector<KeyRange> ranges = even_ranges(kKeys, p, kLeafKeys);
    for (const Topology& topology : {Topology::pretend(p, p), mixed_grouping(p)}) {
      for (const Algorithm& algorithm : algorithms()) {
        INFO(algorithm.name << ", " << (Layout{topology, ranges}.text()));
        int of_opening = 0, in_steps = -1;
        std::string name;
        rank_group->run(topology, [&](Transport& transport) {
          name = transport.name();
          const KeyRange own = topology.range_of(transport.rank(), ranges);
          OpenShard shard = open_shard(cpu_backend(), q, workload->shard(own), workload->lengths(), workload->scale);
          const int before = n_allocations_here;
          const std::unique_ptr<Decoder> decoder = algorithm.open(transport, shard, ranges);
          of_opening = n_allocations_here - before;
          decoder->step({q, workload->lengths()});
          const int after_first_step = n_allocations_here;
          for (int step = 1; step < kSteps; ++step) decoder->step({q, workload->lengths()});
          in_steps = n_allocations_here - after_first_step;
          return decoder->step({q, workload->lengths()}).copy();
        });
        CAPTURE(name);
        CHECK(in_steps == 0);
        CHECK(of_opening > 0);  // the counter counts
      }
    }
  }
}

}  // namespace tree_attn::test
