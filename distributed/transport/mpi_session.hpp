// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief MPI_Init to MPI_Finalize under a deadline, for a program that owns the whole job.
#pragma once

#include "distributed/transport/call_limit.hpp"
#include "distributed/transport/launcher.hpp"
#include "distributed/transport/mpi_ranks.hpp"

#include <mpi.h>

#include <exception>
#include <optional>
#include <string>

namespace tree_attn {

/// Starts and ends MPI, and ends the job if a rank waits for others longer than `timeout` seconds, or does not come back
/// from a call of MPI.
///
/// The library itself accepts any communicator (MpiRanks); this class is for programs that let it manage MPI. A rank that
/// ends the job exits with status 2 after one line. Open MPI's and MPICH's mpirun then end the others, and so does srun with
/// --kill-on-bad-exit; without it they end by their own deadlines.
class MpiSession {
 public:
  /// Starts MPI; an error ends the job as in abandon(). @param timeout seconds, may be infinite
  MpiSession(int* argc, char*** argv, double timeout);
  /// Ends MPI.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  /// All ranks of the job.
  const MpiRanks& ranks() const { return *ranks_; }
  /// The job as the launcher describes it.
  const LaunchedJob& launch() const { return launch_; }

  /// Ends this process, and by that the job, with the line of an error, which names this rank if the job has several. Called
  /// by a rank that can no longer reach the others. After a deadline lower ranks speak first (turn_of()).
  [[noreturn]] void abandon(const std::exception& error) const;

 private:
  void start(int* argc, char*** argv);

  LaunchedJob launch_;
  CallLimit limit_;
  std::optional<MpiRanks> ranks_;
};

}  // namespace tree_attn
