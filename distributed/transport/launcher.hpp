// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The job as the launcher (mpirun, srun) describes it in the environment, known before MPI_Init.
#pragma once

#include <optional>
#include <string>

namespace tree_attn {

/// The job as the launcher describes it. A process without a launcher is rank 0 of 1.
struct LaunchedJob {
  std::string launcher;    ///< "Open MPI's mpirun", for instance; "" for a process without one
  int rank = 0, size = 1;  ///< in the job; a size that is not known counts as rank + 1
  bool knows_size = true;  ///< PMIx alone says nothing of a size before MPI_Init
};

/// Reads the variables of Open MPI, of MPICH and its relatives (PMI), of Slurm and of PMIx, in this order.
LaunchedJob find_launched_job();

/// Detects a launcher of another MPI: it started several processes, but MPI reports one rank in each. Where the size is
/// not known, all but rank 0 detect it.
/// @param n_ranks size of MPI_COMM_WORLD @param library name of the MPI that the program was built with
/// @return the error, in one line that says what to do; nothing if launcher and MPI agree
std::optional<std::string> foreign_launcher(const LaunchedJob& job, int n_ranks, const std::string& library);

}  // namespace tree_attn
