// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A library to preload: what rank 0 sends arrives with another bit, as if memory or a link had failed.
#include <mpi.h>

#include <cstring>
#include <list>
#include <vector>

extern "C" int MPI_Isend(const void* data, int n, MPI_Datatype type, int peer, int tag, MPI_Comm comm,
                         MPI_Request* request) {
  int me = 0, bytes = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &me);
  PMPI_Type_size(type, &bytes);
  bytes *= n;
  if (me != 0 || bytes < 4) return PMPI_Isend(data, n, type, peer, tag, comm, request);
  // The copy has to live until the message has left; the highest bit of the fraction of the last float.
  static std::list<std::vector<char>> sent;
  std::vector<char>& copy = sent.emplace_back(static_cast<std::size_t>(bytes));
  std::memcpy(copy.data(), data, copy.size());
  copy[copy.size() - 2] ^= 0x40;
  return PMPI_Isend(copy.data(), n, type, peer, tag, comm, request);
}
