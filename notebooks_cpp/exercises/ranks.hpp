// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The outcome of an exercise that runs on several MPI ranks.
#pragma once

#include "tree_attn/notebooks_cpp/exercises/check.hpp"

#include <mpi.h>

namespace tree_attn::exercise {

/// Adds up the claims of all ranks, ends MPI, and prints the outcome on rank 0. @returns the status of the program
inline int result_of_ranks() {
  int rank = 0, counts[2] = {claims.n, claims.n_failed};
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Allreduce(MPI_IN_PLACE, counts, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Finalize();
  claims = {counts[0], counts[1]};
  if (rank == 0) return result();
  return claims.n_failed > 0 ? 1 : 0;
}

}  // namespace tree_attn::exercise
