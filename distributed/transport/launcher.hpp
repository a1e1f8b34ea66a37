// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What the launcher (mpirun, srun) tells a process through its environment, before MPI itself can be asked.
#pragma once

#include <optional>
#include <string>

namespace tree_attn {

/// The job as the launcher describes it. A process without a launcher is rank 0 of 1.
struct Launch {
  std::string launcher;            ///< who says so: "Open MPI's mpirun", "" for a process on its own
  int rank = 0, size = 1;          ///< in the job
  bool one_exit_ends_job = false;  ///< the launcher ends all ranks when one exits with a status other than 0
  int n_here = 0;                  ///< ranks on this machine, 0 if the launcher does not tell
  std::string key;  ///< the same for the ranks that one launcher process started, and for no other job; may be ""
};

/// Reads the variables of Open MPI, of MPICH and its relatives (PMI) and of Slurm, in this order.
Launch find_launch();

/// Why this job cannot work: the launcher started several ranks, but MPI sees one, since it belongs to another MPI.
/// @param n_ranks what MPI says @param library name of the MPI that the program was built with
/// @return one line with what to do; nothing if all is well
std::optional<std::string> foreign_launcher(const Launch& launch, int n_ranks, const std::string& library);

}  // namespace tree_attn
