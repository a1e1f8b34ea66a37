// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief MPI_Init to MPI_Finalize under a watchdog, for a program that owns the whole job.
#pragma once

#include "tree_attn/distributed/job/pulse_exchange.hpp"
#include "tree_attn/distributed/job/watchdog.hpp"
#include "tree_attn/distributed/transport/mpi_ranks.hpp"

#include <exception>
#include <memory>
#include <optional>
#include <string>

namespace tree_attn {

/// Starts and ends MPI, under a watchdog that ends the job if a rank does not answer for `timeout` seconds.
///
/// The library itself accepts any communicator (MpiRanks); this class is for programs that let it manage MPI. Every wait for
/// another rank is announced to the watchdog, including MPI_Init and MPI_Finalize.
///
/// Unless the launcher reports that all ranks are on one machine, the session requests MPI_THREAD_MULTIPLE, so that the
/// thread of the watchdog can exchange pulses with other machines. If MPI does not provide it, the main thread exchanges
/// them while it waits or makes progress; PulseObserver documents what then goes undetected.
class MpiSession {
 public:
  /// Starts MPI; once the rank is on the board of its machine, an error ends the job as in abandon().
  /// @param timeout seconds, may be infinite @throws std::bad_alloc
  MpiSession(int* argc, char*** argv, double timeout);
  /// Ends MPI, or the job if that fails.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  /// All ranks of the job.
  const MpiRanks& ranks() const { return *ranks_; }
  /// The job as the launcher describes it.
  const LaunchedJob& launch() const { return launch_; }

  /// Ends all ranks with one line and status 2. Called by a rank that can no longer reach the others.
  [[noreturn]] void abandon(const std::string& line) const;
  /// The same with the line of an error, which names this rank if the job has several.
  [[noreturn]] void abandon(const std::exception& error) const;
  /// True for the first rank of this machine that calls it, which then writes the last line of the job. Async-signal-safe.
  bool claim_last_word() const { return watchdog_.board().claim_last_word(); }

 private:
  void start(int* argc, char*** argv);
  /// Starts and ends the exchange of pulses between machines.
  void join_machines(int thread_level);
  void leave_machines();

  LaunchedJob launch_;
  Watchdog watchdog_;
  std::optional<MpiRanks> ranks_;
  std::unique_ptr<PulseExchange> exchange_;  ///< null if all ranks share one board, or without a deadline
};

}  // namespace tree_attn
