// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The job and the rank that a launcher's variables describe.
#include "distributed/transport/launcher.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <map>
#include <string>

namespace tree_attn {
namespace {

/// Reads the job with these variables of launchers, and no others.
LaunchedJob job_with(const std::map<std::string, std::string>& values) {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID",
                           "SLURM_STEP_NUM_TASKS", "PMIX_RANK"})
    unsetenv(name);
  for (const auto& [name, value] : values) setenv(name.c_str(), value.c_str(), 1);
  const LaunchedJob job = find_launched_job();
  for (const auto& [name, value] : values) unsetenv(name.c_str());
  return job;
}

}  // namespace

TEST_CASE("launcher: a rank is described by the variables of its launcher, the innermost first") {
  std::map<std::string, std::string> variables{{"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "5"}};
  CHECK(job_with({}).size == 1);
  CHECK(job_with(variables).launcher == "Slurm's srun");
  CHECK(job_with(variables).rank == 3);
  CHECK(job_with(variables).size == 5);
  // An mpiexec that srun has started passes on the variables of the step.
  variables.insert({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}});
  CHECK(job_with(variables).rank == 1);
  CHECK(job_with(variables).size == 4);
  variables.insert({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
  CHECK(job_with(variables).size == 2);
  // Variables that make no sense are of another program.
  variables["OMPI_COMM_WORLD_SIZE"] = "0";
  CHECK(job_with(variables).size == 4);
  for (const char* rank : {"4", "-1", "x"}) {
    variables["PMI_RANK"] = rank;
    CHECK(job_with(variables).size == 5);
  }
}

TEST_CASE("launcher: PMIx alone is a launcher, which says nothing of a size") {
  const LaunchedJob job = job_with({{"PMIX_RANK", "3"}});
  CHECK(job.launcher == "a launcher with PMIx");
  CHECK(job.rank == 3);
  CHECK(job.size == 4);
  CHECK(!job.knows_size);
  CHECK(job_with({{"PMIX_RANK", "0"}}).launcher == job.launcher);
  CHECK(job_with({{"PMIX_RANK", "3"}, {"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "5"}}).size == 5);
  for (const char* rank : {"-1", "x", "2147483647"}) CHECK(job_with({{"PMIX_RANK", rank}}).launcher.empty());
  // With one rank in each process, those detect it that know of another.
  CHECK(!foreign_launcher(job, 4, "MPI"));
  CHECK(!foreign_launcher(job_with({{"PMIX_RANK", "0"}}), 1, "MPI"));
  CHECK(foreign_launcher(job, 1, "MPI")->starts_with("a launcher with PMIx started at least 4 processes, but MPI"));
}

}  // namespace tree_attn
