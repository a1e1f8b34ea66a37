// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A cache that moves to other ranks over MPI and through shared memory.
#include "tree_attn/distributed/transport/mpi_transport.hpp"
#include "tree_attn/tests/support/mpi_test_session.hpp"
#include "tree_attn/tests/support/reshard_walk.hpp"

namespace tree_attn::test {

TEST_CASE("reshard: over MPI a cache goes from p to p' ranks and back, with the bits of one that stays") {
  const MpiRanks& ranks = session().ranks();
  const int p = ranks.size(), half = (p + 1) / 2;
  for (const bool shares_memory : {false, true}) {
    const Topology topology = ranks.topology(2);
    const std::unique_ptr<Transport> transport =
        shares_memory ? ranks.open_shared_transport(topology) : ranks.open_transport(topology);
    for (const LeafOrder order : {LeafOrder::kContiguous, LeafOrder::kDealt})
      CHECK(ReshardWalk(order, DType::BF16).run(*transport, {p, half, 1, p, half}) == 0);
  }
}

}  // namespace tree_attn::test
