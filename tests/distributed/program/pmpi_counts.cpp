// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A library to preload: counts what the program hands to MPI to send, and prints the sums over all ranks at the end.
///
/// PMPI_COUNTS_PER_NODE: ranks per node, for the bytes between nodes. Prints "PMPI messages bytes bytes-between-nodes".
#include <mpi.h>

#include <array>
#include <cstdio>
#include <cstdlib>

namespace {

/// Messages, bytes, bytes between nodes.
std::array<long long, 3> counts{};

void count(int n, MPI_Datatype type, int peer, MPI_Comm comm) {
  int bytes = 0, me = 0;
  PMPI_Type_size(type, &bytes);
  PMPI_Comm_rank(comm, &me);
  const char* text = std::getenv("PMPI_COUNTS_PER_NODE");
  const int per_node = text == nullptr ? 1 : std::atoi(text);
  counts[0] += 1;
  counts[1] += static_cast<long long>(n) * bytes;
  if (me / per_node != peer / per_node) counts[2] += static_cast<long long>(n) * bytes;
}

}  // namespace

extern "C" {

int MPI_Isend(const void* data, int n, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request* request) {
  count(n, type, peer, comm);
  return PMPI_Isend(data, n, type, peer, tag, comm, request);
}

int MPI_Send(const void* data, int n, MPI_Datatype type, int peer, int tag, MPI_Comm comm) {
  count(n, type, peer, comm);
  return PMPI_Send(data, n, type, peer, tag, comm);
}

int MPI_Sendrecv(const void* data, int n, MPI_Datatype type, int peer, int tag, void* to, int n_to, MPI_Datatype type_to,
                 int from, int tag_from, MPI_Comm comm, MPI_Status* status) {
  count(n, type, peer, comm);
  return PMPI_Sendrecv(data, n, type, peer, tag, to, n_to, type_to, from, tag_from, comm, status);
}

int MPI_Finalize() {
  std::array<long long, 3> sums{};
  int me = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &me);
  PMPI_Reduce(counts.data(), sums.data(), 3, MPI_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  if (me == 0) std::fprintf(stderr, "PMPI %lld %lld %lld\n", sums[0], sums[1], sums[2]);
  return PMPI_Finalize();
}

}  // extern "C"
