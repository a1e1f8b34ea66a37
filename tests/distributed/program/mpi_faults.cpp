// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A library to preload: the rank STOP_RANK stops in the call STOP_IN, its main thread alone waits there for ever, or
/// the call fails.
///
/// STOP_HOW=stop (SIGSTOP: all threads of the process), wait (the calling thread) or fail. What MPI_Isend() sends arrives
/// with another bit, as if memory or a link had failed; fsync() takes STOP_HOW seconds.
#include <mpi.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <list>
#include <string>
#include <vector>

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

bool stops_in(const char* call) { return variable("STOP_IN") == call && variable("STOP_RANK") == rank_of_launcher(); }

/// @returns the status of the call, if it is to fail
int stop_in(const char* call) {
  if (!stops_in(call)) return MPI_SUCCESS;
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
  return PMPI_Init_thread(argc, argv, required, provided);
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

int MPI_Isend(const void* data, int n, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request* request) {
  int bytes = 0;
  PMPI_Type_size(type, &bytes);
  bytes *= n;
  if (!stops_in("MPI_Isend") || bytes < 4) return PMPI_Isend(data, n, type, peer, tag, comm, request);
  // The copy has to live until the message has left; the highest bit of the fraction of the last float.
  static std::list<std::vector<char>> sent;
  std::vector<char>& copy = sent.emplace_back(static_cast<std::size_t>(bytes));
  std::memcpy(copy.data(), data, copy.size());
  copy[copy.size() - 2] ^= 0x40;
  return PMPI_Isend(copy.data(), n, type, peer, tag, comm, request);
}

int MPI_Finalize() {
  stop_in("MPI_Finalize");
  return PMPI_Finalize();
}

int fsync(int) {
  if (stops_in("fsync")) sleep(static_cast<unsigned>(std::stoi(variable("STOP_HOW"))));
  return 0;
}

}  // extern "C"
