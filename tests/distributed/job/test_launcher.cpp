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
    for (const char* name :
         {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}) {
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

TEST_CASE("launcher: a rank is described by the variables of its launcher, the innermost first") {
  std::map<std::string, std::string> variables{{"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "5"}};
  CHECK(job_with({}).size == 1);
  CHECK(job_with(variables).launcher == "Slurm's srun");
  CHECK(job_with(variables).rank == 3);
  CHECK(job_with(variables).size == 5);
  CHECK(!job_with(variables).one_exit_ends_job);
  // An mpiexec that srun has started passes on the variables of the step.
  variables.insert({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}});
  CHECK(job_with(variables).rank == 1);
  CHECK(job_with(variables).size == 4);
  variables.insert({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
  CHECK(job_with(variables).size == 2);
  CHECK(job_with(variables).one_exit_ends_job);
  // Variables that make no sense are of another program.
  variables["OMPI_COMM_WORLD_SIZE"] = "0";
  CHECK(job_with(variables).size == 4);
  for (const char* rank : {"4", "-1", "x"}) {
    variables["PMI_RANK"] = rank;
    CHECK(job_with(variables).size == 5);
  }
}

}  // namespace tree_attn
