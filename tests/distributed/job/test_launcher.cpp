// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What a launcher says of a rank, read from the variables that it sets.
#include "tree_attn/distributed/job/launcher.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <map>
#include <optional>
#include <string>

namespace tree_attn {
namespace {

/// Sets the variables of all launchers while it lives: those given, and no others.
class Variables {
 public:
  explicit Variables(const std::map<std::string, std::string>& values) {
    for (const char* name : {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_RANK",
                             "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_GTIDS"}) {
      const char* value = std::getenv(name);
      before_[name] = value ? std::optional<std::string>(value) : std::nullopt;
      set(name, values.contains(name) ? std::optional(values.at(name)) : std::nullopt);
    }
  }
  ~Variables() {
    for (const auto& [name, value] : before_) set(name, value);
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  static void set(const std::string& name, const std::optional<std::string>& value) {
    value ? setenv(name.c_str(), value->c_str(), 1) : unsetenv(name.c_str());
  }

  std::map<std::string, std::optional<std::string>> before_;
};

LaunchedJob job_with(const std::map<std::string, std::string>& values) {
  const Variables variables(values);
  return find_launched_job();
}

}  // namespace

TEST_CASE("launcher: srun lists the ranks of a machine, with a PMI and without") {
  const std::map<std::string, std::string> step{
      {"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "5"}, {"SLURM_GTIDS", "2,3,4"}};
  const LaunchedJob job = job_with(step);
  CHECK(job.launcher == "Slurm's srun");
  CHECK(job.rank == 3);
  CHECK(job.size == 5);
  CHECK(job.n_here == 3);
  std::map<std::string, std::string> pmi = step;
  pmi.insert({{"PMI_RANK", "3"}, {"PMI_SIZE", "5"}});
  CHECK(job_with(pmi).n_here == 3);
  CHECK(job_with({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_GTIDS", "0"}}).n_here == 1);
}

TEST_CASE("launcher: the list of srun counts only for the ranks of its step") {
  // An mpiexec that srun has started passes on the variables of a step of one task.
  const std::map<std::string, std::string> inner{
      {"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_GTIDS", "0"}, {"PMI_RANK", "0"}, {"PMI_SIZE", "4"}};
  CHECK(job_with(inner).n_here == 0);
  std::map<std::string, std::string> hydra = inner;
  hydra["MPI_LOCALNRANKS"] = "4";
  CHECK(job_with(hydra).n_here == 4);
  CHECK(job_with({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}}).n_here == 0);
  CHECK(job_with({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_GTIDS", ""}}).n_here == 0);
}

}  // namespace tree_attn
