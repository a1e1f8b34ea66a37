// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Included before every source of the simulated program: calls of the clock and of sleep go to the simulator.
#pragma once

#include <smpi/smpi.h>
#include <smpi/smpi_helpers.h>

/// SMPI has no MPI_Comm_idup.
inline int simulated_idup(MPI_Comm comm, MPI_Comm* duplicate, MPI_Request* request) {
  *request = MPI_REQUEST_NULL;
  return MPI_Comm_dup(comm, duplicate);
}
#define MPI_Comm_idup simulated_idup
/// SMPI's MPI_Iallreduce sends p^2 messages, and the time of its waits grows with p^3.
inline int simulated_iallreduce(const void* send, void* receive, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                                MPI_Request* request) {
  *request = MPI_REQUEST_NULL;
  return MPI_Allreduce(send, receive, n, type, op, comm);
}
#define MPI_Iallreduce simulated_iallreduce
