// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The environment variables of the launchers, and the process of the launcher.
#include "tree_attn/distributed/job/launcher.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

namespace tree_attn {
namespace {

/// The value of an environment variable, if it is a number of at least `least`.
std::optional<int> number(const char* variable, int least) {
  const char* text = variable[0] == '\0' ? nullptr : std::getenv(variable);
  int value = 0;
  if (text == nullptr || std::from_chars(text, text + std::strlen(text), value).ec != std::errc{} || value < least)
    return {};
  return value;
}

/// The ranks that Slurm started on this machine, counted in its list "0,1"; 0 if this rank is not one of its step.
int n_slurm_here(int rank, int size) {
  const char* list = std::getenv("SLURM_GTIDS");
  if (list == nullptr || list[0] == '\0' || number("SLURM_PROCID", 0) != rank || number("SLURM_STEP_NUM_TASKS", 1) != size)
    return 0;
  return 1 + static_cast<int>(std::count(list, list + std::strlen(list), ','));
}

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A field of /proc/PID/stat, counted from 1: 4 is the parent, 22 the start time. "" if the process does not exist.
std::string stat_field(const std::string& process, int field) {
  const std::string text = content_of("/proc/" + process + "/stat");
  // The second field is a name in parentheses, which may hold spaces.
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return "";
  std::istringstream fields(text.substr(name_end + 1));
  std::string word;
  for (int i = 3; i <= field; ++i) fields >> word;
  return word;
}

/// The process that started this rank on this machine: the nearest ancestor without the variables of a rank, which a shell
/// around the program has.
std::string launcher_process(const std::string& rank_variable) {
  std::string process = std::to_string(getppid());
  while (content_of("/proc/" + process + "/environ").find(rank_variable + "=") != std::string::npos) {
    const std::string parent = stat_field(process, 4);
    if (parent.empty() || parent == "0") break;
    process = parent;
  }
  return process;
}

}  // namespace

LaunchedJob find_launched_job() {
  struct Variables {
    const char *launcher, *rank, *size, *n_here;
    bool one_exit_ends_job;
  };
  constexpr std::array<Variables, 3> kLaunchers{
      {{"Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", true},
       {"a launcher of MPICH's family (PMI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", false},
       {"Slurm's srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "", false}}};
  for (const Variables& names : kLaunchers) {
    const std::optional<int> rank = number(names.rank, 0), size = number(names.size, 1);
    if (!rank || !size || *rank >= *size) continue;
    // The start time makes the key unique.
    const std::string process = launcher_process(names.rank), start = stat_field(process, 22);
    return {names.launcher,
            *rank,
            *size,
            names.one_exit_ends_job,
            number(names.n_here, 1).value_or(n_slurm_here(*rank, *size)),
            start.empty() ? "" : process + "-" + start,
            start.empty() ? 0 : std::stoi(process)};
  }
  return {};
}

std::optional<std::string> foreign_launcher(const LaunchedJob& job, int n_ranks, const std::string& library) {
  if (n_ranks > 1 || job.size == 1) return std::nullopt;
  return job.launcher + " started " + std::to_string(job.size) + " processes, but " + library +
         ", which this program was built with, sees one rank in each; start it with that MPI's own mpirun, or with srun " +
         "--mpi=pmix or --mpi=pmi2, or build it with the MPI of the launcher";
}

}  // namespace tree_attn
