// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Counts what a test program hands to MPI to send.
#include "tests/distributed/program/pmpi_counts.hpp"

#include <mpi.h>

#include <array>

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

}  // extern "C"
