// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The environment variables of the launchers.
#include "distributed/transport/launcher.hpp"

#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace tree_attn {
namespace {

/// The value of an environment variable, if it is a number of at least `least`.
std::optional<int> number(const char* variable, int least) {
  const char* text = std::getenv(variable);
  int value = 0;
  if (text == nullptr || std::from_chars(text, text + std::strlen(text), value).ec != std::errc{} || value < least)
    return {};
  return value;
}

}  // namespace

LaunchedJob find_launched_job() {
  struct Variables {
    const char *launcher, *rank, *size;
  };
  constexpr std::array<Variables, 3> kLaunchers{{{"Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                                 {"a launcher of MPICH's family (PMI)", "PMI_RANK", "PMI_SIZE"},
                                                 {"Slurm's srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}}};
  for (const Variables& names : kLaunchers) {
    const std::optional<int> rank = number(names.rank, 0), size = number(names.size, 1);
    if (rank && size && *rank < *size) return {names.launcher, *rank, *size};
  }
  constexpr int kMost = std::numeric_limits<int>::max();
  if (const std::optional<int> rank = number("PMIX_RANK", 0); rank && *rank < kMost)
    return {"a launcher with PMIx", *rank, *rank + 1, false};
  return {};
}

std::optional<std::string> foreign_launcher(const LaunchedJob& job, int n_ranks, const std::string& library) {
  if (n_ranks > 1 || job.size == 1) return std::nullopt;
  return job.launcher + " started " + (job.knows_size ? "" : "at least ") + std::to_string(job.size) + " processes, but " +
         library +
         ", which this program was built with, sees one rank in each; start it with that MPI's own mpirun, or with srun " +
         "--mpi=pmix or --mpi=pmi2, or build it with the MPI of the launcher";
}

}  // namespace tree_attn
