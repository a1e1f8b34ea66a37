// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks before MPI is initialized and after it is finalized: mpirun -n P mpi_ending. A program of its own, for MPI
/// starts once.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "distributed/transport/mpi_transport.hpp"
#include "tests/support/check_ranks.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <optional>
#include <stdexcept>

namespace tree_attn::test {

TEST_CASE("mpi ending: before MPI and after it every call throws, and what is left ends in silence") {
  constexpr double kTimeout = 20;
  const auto has_no_ranks = [] {
    CHECK_THROWS_WITH_AS(MpiRanks(MPI_COMM_WORLD, kTimeout), "MpiRanks: MPI is not running", std::invalid_argument);
  };
  has_no_ranks();
  int level = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SINGLE, &level);
  std::optional<MpiRanks> ranks(std::in_place, MPI_COMM_WORLD, kTimeout);
  const Topology topology = ranks->topology(0);
  std::unique_ptr<Transport> over_mpi = ranks->open_transport(topology), shared = ranks->open_shared_transport(topology);
  MPI_Finalize();

  has_no_ranks();
  check_refusal<std::logic_error>(*ranks, {over_mpi.get(), shared.get()}, "MpiRanks: MPI is not running");
  shared.reset();
  over_mpi.reset();
  ranks.reset();
}

}  // namespace tree_attn::test
