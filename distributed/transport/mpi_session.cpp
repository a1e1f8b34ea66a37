// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The start and the end of MPI.
#include "distributed/transport/mpi_session.hpp"

#include "distributed/transport/error_line.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

namespace tree_attn {
namespace {

/// Seconds that the start and the end may take at least: a library may be looking up a host name.
constexpr double kStart = 30;
/// Time limits that the start may take: thousands of ranks may be reading libraries from a cold file system.
constexpr double kLimitsOfStart = 5;

}  // namespace

MpiSession::MpiSession(int* argc, char*** argv, double timeout)
    : launch_(find_launched_job()), limit_(launch_.rank, timeout) {
  try {
    start(argc, argv);
  } catch (const std::exception& error) {
    abandon(error);  // a destructor would wait for ranks that wait for this one
  }
}

MpiSession::~MpiSession() {
  ranks_.reset();
  limit_.begin_call("MPI_Finalize", kStart);
  MPI_Finalize();
  limit_.end_call();
}

void MpiSession::start(int* argc, char*** argv) {
  int level = MPI_THREAD_SINGLE;
  limit_.begin_call("MPI_Init_thread", std::max(kStart, kLimitsOfStart * limit_.seconds()));
  const int status = MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &level);
  limit_.end_call();
  check_mpi(status, "MPI_Init_thread");
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  ranks_.emplace(MPI_COMM_WORLD, limit_);
}

void MpiSession::abandon(const std::exception& error) const {
  const int size = ranks_ ? ranks_->size() : launch_.size, rank = ranks_ ? ranks_->rank() : launch_.rank;
  std::string line = error_line(error, size > 1 ? "rank " + std::to_string(rank) : "");
  const auto* const failed = dynamic_cast<const TransportError*>(&error);
  if (failed != nullptr && failed->kind == TransportError::Kind::kDeadline) {
    line += "; if a rank computes for longer, it needs a longer --timeout";
    std::this_thread::sleep_for(std::chrono::duration<double>(turn_of(rank)));
  }
  // With a single rank there may be no launcher that cleans up.
  if (ranks_ && size == 1) MPI_Finalize();
  end_process(line);
}

}  // namespace tree_attn
