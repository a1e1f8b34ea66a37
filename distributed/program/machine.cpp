// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Properties of this machine, from the operating system, MPI and the compiler.
#include "distributed/program/machine.hpp"

#include "gpu/backend/backends.hpp"
#include "reference/cpu/leaf_kernel.hpp"
#include "reference/data/input_error.hpp"

#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <span>
#include <string_view>
#include <thread>

namespace tree_attn {
namespace {

/// The cores that the launcher lets this process use.
cpu_set_t cores_of_process() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return cores;
  // The kernel knows more cores than the set has room for.
  for (unsigned core = 0; core < std::thread::hardware_concurrency() && core < CPU_SETSIZE; ++core) CPU_SET(core, &cores);
  return cores;
}

/// Cores that the container of this process may use at a time; infinity without a limit.
double container_cores() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;  // "max 100000" is no limit
  return file >> quota >> period && period > 0 ? quota / period : std::numeric_limits<double>::infinity();
}

}  // namespace

int n_allowed_cores() {
  const cpu_set_t cores = cores_of_process();
  return CPU_COUNT(&cores);
}

std::string mpi_library() {
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(version, &length);
  // Open MPI: "Open MPI v4.1.4, package: ...". MPICH: "MPICH Version:\t4.0.2\nMPICH Release date: ...".
  const std::string_view text(version, static_cast<std::size_t>(length));
  std::string name(text.substr(0, text.find_first_of(",\n")));
  if (const std::size_t mark = name.find(" Version:\t"); mark != std::string::npos) name.erase(mark + 1, 9);
  return readable(name);
}

Machine this_machine() {
  Machine machine;
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; machine.cpu.empty() && std::getline(cpuinfo, line);) {
    if (!line.starts_with("model name")) continue;
    // Nothing follows the colon where the name is unknown.
    if (const std::size_t name = line.find_first_not_of(" \t", line.find(':') + 1); name != std::string::npos)
      machine.cpu = line.substr(name);
  }
  machine.cores = static_cast<int>(std::thread::hardware_concurrency());
  if (cpu_backend().missing().empty()) machine.instruction_set = leaf_kernel().name;
  machine.mpi = mpi_library();
#if defined(__clang__)
  machine.compiler = __VERSION__;  // begins with the compiler's name
#else
  machine.compiler = "g++ " __VERSION__;
#endif
  machine.build_type = TREE_ATTN_BUILD_TYPE;
  for (const Backend* backend : backends()) {
    for (std::string& gpu : backend->gpus()) machine.gpus.push_back(std::move(gpu));
  }
  return machine;
}

CoreShare share_cores(const Ranks& ranks, const Topology& machines) {
  const cpu_set_t mine = cores_of_process();
  const std::vector<cpu_set_t> cores = ranks.all_gather(mine, "the cores of all ranks");
  // Launchers bind ranks to cores of their own, or to cores that they share.
  cpu_set_t of_node = mine;
  const auto& node = machines.node(machines.node_of(ranks.rank()));
  for (const int rank : node) CPU_OR(&of_node, &of_node, &cores[static_cast<std::size_t>(rank)]);
  const double n_cores = std::min(static_cast<double>(CPU_COUNT(&of_node)), container_cores());
  const auto n_ranks = static_cast<double>(node.size());
  const int share = std::min(static_cast<int>(n_cores / n_ranks), n_allowed_cores());
  return {static_cast<int>(ranks.all_min(static_cast<std::uint64_t>(std::max(share, 1)))),
          ranks.all_max(std::uint64_t{n_ranks > n_cores}) != 0};
}

}  // namespace tree_attn
