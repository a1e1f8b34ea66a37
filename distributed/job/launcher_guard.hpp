// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A deadline for the launcher itself, once the ranks have ended the job.
#pragma once

#include <sys/types.h>

namespace tree_attn {

/// Kills the launcher if it has not exited after `seconds`, and removes a file when it has exited. Returns at once: a
/// process of its own waits, so the caller may exit.
///
/// Open MPI's mpirun, of version 4.1.4, now and then waits forever in its own PMIx_server_finalize() when ranks have exited
/// during MPI_Init or MPI_Finalize.
/// @param launcher that started this rank on this machine
/// @param file that a rank may create or use as long as there is a launcher to end it
/// @returns false, with nothing done, if the kernel has no pidfd_open() (Linux 5.3) or no further process
bool guard_launcher(pid_t launcher, double seconds, const char* file);

}  // namespace tree_attn
