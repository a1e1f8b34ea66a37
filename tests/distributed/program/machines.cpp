// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A library to preload: every RANKS_PER_MACHINE consecutive ranks share their memory with no others, as if each such
/// group had a machine of its own.
#include <dlfcn.h>

#include <cstdlib>
#include <string>

extern "C" {

/// The file that ranks of one machine share has another name on every machine.
int memfd_create(const char* name, unsigned flags) {
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (rank == nullptr) rank = std::getenv("PMI_RANK");
  const int machine = std::atoi(rank) / std::atoi(std::getenv("RANKS_PER_MACHINE"));
  const std::string here = std::string(name) + "-machine" + std::to_string(machine);
  return reinterpret_cast<int (*)(const char*, unsigned)>(dlsym(RTLD_NEXT, "memfd_create"))(here.c_str(), flags);
}

}  // extern "C"
