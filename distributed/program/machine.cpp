// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Properties of this machine, from the operating system, MPI and the compiler.
#include "distributed/program/machine.hpp"

#include "gpu/backend/backends.hpp"
#include "reference/data/input_error.hpp"

#include <mpi.h>

#include <fstream>
#include <string_view>
#include <thread>

namespace tree_attn {

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
    if (line.starts_with("model name")) machine.cpu = line.substr(line.find(':') + 2);
  }
  machine.cores = static_cast<int>(std::thread::hardware_concurrency());
  machine.mpi = mpi_library();
  machine.compiler = "g++ " __VERSION__;
  machine.build_type = TREE_ATTN_BUILD_TYPE;
  for (const Backend* backend : backends()) {
    for (std::string& gpu : backend->gpus()) machine.gpus.push_back(std::move(gpu));
  }
  return machine;
}

}  // namespace tree_attn
