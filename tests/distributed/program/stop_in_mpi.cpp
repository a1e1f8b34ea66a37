// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A library to preload: stops the rank STOP_RANK in the MPI call STOP_IN, lets its main thread alone wait for ever,
/// or lets the call fail.
///
/// STOP_HOW=stop (SIGSTOP: all threads of the process), wait (the calling thread) or fail. With MPI_LEVEL=funneled, MPI
/// grants no more than MPI_THREAD_FUNNELED.
#include <mpi.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

namespace {

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

/// Before MPI_Init only the launcher knows the rank.
std::string rank_of_launcher() {
  const std::string open_mpi = variable("OMPI_COMM_WORLD_RANK");
  return open_mpi.empty() ? variable("PMI_RANK") : open_mpi;
}

/// @returns the status of the call, if it is to fail
int stop_in(const std::string& call) {
  if (variable("STOP_IN") != call || variable("STOP_RANK") != rank_of_launcher()) return MPI_SUCCESS;
  const std::string how = variable("STOP_HOW");
  if (how == "fail") return MPI_ERR_OTHER;
  if (how != "wait")
    raise(SIGSTOP);
  else
    for (;;) pause();
  return MPI_SUCCESS;
}

}  // namespace

extern "C" {

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  stop_in("MPI_Init_thread");
  return PMPI_Init_thread(
      argc, argv, variable("MPI_LEVEL") == "funneled" ? std::min<int>(required, MPI_THREAD_FUNNELED) : required, provided);
}

int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm* split) {
  if (const int status = stop_in("MPI_Comm_split_type"); status != MPI_SUCCESS) return status;
  return PMPI_Comm_split_type(comm, type, key, info, split);
}

int MPI_Comm_idup(MPI_Comm comm, MPI_Comm* copy, MPI_Request* request) {
  if (const int status = stop_in("MPI_Comm_idup"); status != MPI_SUCCESS) return status;
  return PMPI_Comm_idup(comm, copy, request);
}

int MPI_Comm_free(MPI_Comm* comm) {
  stop_in("MPI_Comm_free");
  return PMPI_Comm_free(comm);
}

/// As if a disk took STOP_HOW seconds.
int fsync(int) {
  if (variable("STOP_IN") == "fsync" && variable("STOP_RANK") == rank_of_launcher())
    sleep(static_cast<unsigned>(std::stoi(variable("STOP_HOW"))));
  return 0;
}

int MPI_Finalize() {
  stop_in("MPI_Finalize");
  return PMPI_Finalize();
}

}  // extern "C"
