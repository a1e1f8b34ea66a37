// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A library to preload: every RANKS_PER_MACHINE consecutive ranks share their memory with no others, as if each such
/// group had a machine of its own.
#include <dlfcn.h>
#include <sys/types.h>

#include <algorithm>
#include <cstdlib>
#include <string>

namespace {

/// A variable of Open MPI, or of MPICH, or of the test.
int number(const char* of_open_mpi, const char* of_mpich = "") {
  const char* text = std::getenv(of_open_mpi);
  if (text == nullptr) text = std::getenv(of_mpich);
  return text == nullptr ? 0 : std::atoi(text);
}

int machine() { return number("OMPI_COMM_WORLD_RANK", "PMI_RANK") / number("RANKS_PER_MACHINE"); }

std::string here(const char* name) { return std::string(name) + "-machine" + std::to_string(machine()); }

/// The function that this library hides.
template <class Function>
Function* hidden(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

/// What the launcher would say of the ranks of this machine.
__attribute__((constructor)) void tell_number_of_ranks() {
  const int n_ranks = number("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"), per_machine = number("RANKS_PER_MACHINE");
  const std::string n_here = std::to_string(std::min(per_machine, n_ranks - machine() * per_machine));
  for (const char* variable : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}) {
    if (std::getenv(variable) != nullptr) setenv(variable, n_here.c_str(), 1);
  }
}

}  // namespace

extern "C" {

int shm_open(const char* name, int flags, mode_t mode) {
  return hidden<int(const char*, int, mode_t)>("shm_open")(here(name).c_str(), flags, mode);
}

int shm_unlink(const char* name) { return hidden<int(const char*)>("shm_unlink")(here(name).c_str()); }

}  // extern "C"
