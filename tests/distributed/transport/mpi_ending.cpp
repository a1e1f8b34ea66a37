// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks before MPI is initialized and after it is finalized: mpirun -n P mpi_ending. A program of its own, for MPI
/// starts once.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tree_attn/distributed/transport/mpi_transport.hpp"

#include <doctest/doctest.h>

#include <array>
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
  constexpr const char* kLine = "MpiRanks: MPI is not running";
  std::array<std::byte, 8> bytes{};
  CHECK_THROWS_WITH_AS(ranks->barrier(), kLine, std::logic_error);
  CHECK_THROWS_WITH_AS(ranks->broadcast(bytes, 0, "a test"), kLine, std::logic_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(ranks->all_sum(1)), kLine, std::logic_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(ranks->topology(0)), kLine, std::logic_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(ranks->open_transport(topology)), kLine, std::logic_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(ranks->open_shared_transport(topology)), kLine, std::logic_error);
  CHECK_THROWS_WITH_AS(over_mpi->send(bytes, 0), kLine, std::logic_error);
  CHECK_THROWS_WITH_AS(over_mpi->receive(bytes, 0), kLine, std::logic_error);
  CHECK_THROWS_WITH_AS(shared->send(bytes, 0), kLine, std::logic_error);
  CHECK_THROWS_WITH_AS(shared->receive(bytes, 0), kLine, std::logic_error);
  shared.reset();
  over_mpi.reset();
  ranks.reset();
}

}  // namespace tree_attn::test
