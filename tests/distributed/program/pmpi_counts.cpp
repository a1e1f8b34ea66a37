// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Counts what the program hands to MPI to send. A library to preload, which prints the sums over all ranks at the
/// end, and a source to link into a test program, which asks for them (pmpi_counts.hpp).
///
/// PMPI_COUNTS_PER_NODE: ranks per node, for the bytes between nodes. Prints "PMPI messages bytes bytes-between-nodes".
#include "tree_attn/tests/distributed/program/pmpi_counts.hpp"

#include <mpi.h>

#include <array>
#include <cstdio>
#include <cstdlib>

namespace {

using tree_attn::test::GivenToMpi;

/// By rank that the message goes to: more than a test starts.
std::array<GivenToMpi, 64> given{};

void count(int n, MPI_Datatype type, int peer) {
  int bytes = 0;
  PMPI_Type_size(type, &bytes);
  GivenToMpi& to_peer = given.at(static_cast<std::size_t>(peer));
  to_peer.messages += 1;
  to_peer.bytes += static_cast<long long>(n) * bytes;
}

}  // namespace

std::span<const GivenToMpi> tree_attn::test::given_to_mpi() { return given; }

extern "C" {

int MPI_Isend(const void* data, int n, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request* request) {
  count(n, type, peer);
  return PMPI_Isend(data, n, type, peer, tag, comm, request);
}

int MPI_Send(const void* data, int n, MPI_Datatype type, int peer, int tag, MPI_Comm comm) {
  count(n, type, peer);
  return PMPI_Send(data, n, type, peer, tag, comm);
}

int MPI_Sendrecv(const void* data, int n, MPI_Datatype type, int peer, int tag, void* to, int n_to, MPI_Datatype type_to,
                 int from, int tag_from, MPI_Comm comm, MPI_Status* status) {
  count(n, type, peer);
  return PMPI_Sendrecv(data, n, type, peer, tag, to, n_to, type_to, from, tag_from, comm, status);
}

int MPI_Finalize() {
  const char* const text = std::getenv("PMPI_COUNTS_PER_NODE");
  if (text == nullptr) return PMPI_Finalize();
  const int per_node = std::atoi(text);
  int me = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &me);
  std::array<long long, 3> counts{}, sums{};
  for (int peer = 0; peer < static_cast<int>(given.size()); ++peer) {
    const auto& [messages, bytes] = given[static_cast<std::size_t>(peer)];
    counts[0] += messages, counts[1] += bytes;
    if (me / per_node != peer / per_node) counts[2] += bytes;
  }
  PMPI_Reduce(counts.data(), sums.data(), 3, MPI_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  if (me == 0) std::fprintf(stderr, "PMPI %lld %lld %lld\n", sums[0], sums[1], sums[2]);
  return PMPI_Finalize();
}

}  // extern "C"
