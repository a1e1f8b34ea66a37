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
