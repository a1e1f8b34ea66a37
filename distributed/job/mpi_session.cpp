// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief MPI under a watchdog.
#include "tree_attn/distributed/job/mpi_session.hpp"

#include "tree_attn/distributed/job/error_line.hpp"
#include "tree_attn/distributed/transport/mpi_check.hpp"

#include <algorithm>
#include <thread>

namespace tree_attn {

MpiSession::MpiSession(int* argc, char*** argv, double timeout) : launch_(find_launched_job()), watchdog_(launch_, timeout) {
  try {
    start(argc, argv);
  } catch (const std::exception& error) {
    // The destructor of the watchdog would wait for ranks that wait for this one.
    abandon(error);
  }
}

MpiSession::~MpiSession() {
  try {
    leave_machines();
  } catch (const std::exception& error) {
    abandon(error);
  }
  ranks_.reset();
  const Waiting waiting(watchdog_, "in MPI_Finalize");
  MPI_Finalize();
}

void MpiSession::start(int* argc, char*** argv) {
  watchdog_.start();
  int level = MPI_THREAD_SINGLE;
  {
    const Waiting waiting(watchdog_, "in MPI_Init_thread");
    const bool one_machine = launch_.size <= std::max(launch_.n_here, 1);
    check_mpi(MPI_Init_thread(argc, argv, one_machine ? MPI_THREAD_FUNNELED : MPI_THREAD_MULTIPLE, &level),
              "MPI_Init_thread");
  }
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  ranks_.emplace(MPI_COMM_WORLD, watchdog_);
  ranks_->barrier();
  watchdog_.mpi_has_started();
  join_machines(level);
}

void MpiSession::join_machines(int thread_level) {
  if (ranks_->size() == 1) return;
  // Identify a machine by its lowest rank, the first on its board.
  const std::span<Pulse> pulses = watchdog_.board().pulses();
  const auto first = std::find_if(pulses.begin(), pulses.end(), [](const Pulse& pulse) { return pulse.beats != 0; });
  const int machine = watchdog_.is_limited() ? static_cast<int>(first - pulses.begin()) : 0;
  const std::vector<int> machine_of_rank =
      ranks_->all_gather(std::span<const int>(&machine, 1), "the machines of all ranks");
  if (std::count(machine_of_rank.begin(), machine_of_rank.end(), 0) == ranks_->size()) return;

  const bool any_thread = ranks_->all_min(static_cast<std::uint64_t>(thread_level)) == MPI_THREAD_MULTIPLE;
  {
    const Waiting waiting(watchdog_, "in MPI_Comm_dup");
    exchange_ = std::make_unique<PulseExchange>(watchdog_.board(), ranks_->comm(), machine_of_rank, any_thread);
  }
  watchdog_.exchange_by([this] { exchange_->step(); }, any_thread);
}

void MpiSession::leave_machines() {
  if (!exchange_) return;
  // Ranks that still compute must receive pulses from the others. After the barrier none computes, and only the main thread
  // calls MPI.
  ranks_->barrier();
  watchdog_.exchange_by({}, exchange_->any_thread());
  {
    const Waiting waiting(watchdog_, "for the other machines to leave");
    for (exchange_->finish(); !exchange_->finished(); std::this_thread::yield()) exchange_->step();
  }
  const Waiting waiting(watchdog_, "in MPI_Comm_free");
  exchange_.reset();
}

void MpiSession::abandon(const std::exception& error) const {
  const int size = ranks_ ? ranks_->size() : launch_.size, rank = ranks_ ? ranks_->rank() : launch_.rank;
  abandon(error_line(error, size > 1 ? "rank " + std::to_string(rank) : ""));
}

void MpiSession::abandon(const std::string& line) const {
  // With a single rank there may be no launcher that cleans up.
  if (ranks_ && ranks_->size() == 1) MPI_Finalize();
  watchdog_.end_job(line);
}

}  // namespace tree_attn
