// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief MPI from its start to its end, as a program runs it that owns the whole job.
#pragma once

#include "distributed/transport/mpi_ranks.hpp"
#include "distributed/transport/pulse_exchange.hpp"
#include "distributed/transport/watchdog.hpp"

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace tree_attn {

/// Starts and ends MPI, under a watchdog that ends the job when a rank does not answer for `timeout` seconds.
///
/// The library itself takes any communicator (MpiRanks); this class is for programs that leave MPI to us. Whatever can wait
/// for another rank is announced to the watchdog, MPI_Init and MPI_Finalize included.
///
/// Unless the launcher says that all ranks are on one machine, the session asks for MPI_THREAD_MULTIPLE, so that the
/// watchdog's thread can exchange pulses with other machines. Where MPI does not grant it, the main thread does so while it
/// waits or makes progress; PulseObserver says what is then not noticed.
class MpiSession {
 public:
  /// Starts MPI. @param timeout seconds, may be infinite @throws TransportError
  MpiSession(int* argc, char*** argv, double timeout);
  /// Ends MPI.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  /// All ranks of the job.
  const MpiRanks& ranks() const { return *ranks_; }
  /// What the launcher said of the job.
  const Launch& launch() const { return launch_; }

  /// Ends every rank with one line and status 2, from a rank that cannot reach the others any more.
  [[noreturn]] void abandon(const std::string& line) const;
  /// True for the first rank of this machine that asks: it writes the line that ends the job. Safe in a signal handler.
  bool claim_last_word() const { return watchdog_.board().claim_last_word(); }

 private:
  /// Starts and ends the exchange of pulses between machines.
  void join_machines(int thread_level);
  void leave_machines();

  Launch launch_;
  Watchdog watchdog_;
  std::optional<MpiRanks> ranks_;
  std::unique_ptr<PulseExchange> exchange_;  ///< nothing if all ranks share one board, or there is no deadline
};

}  // namespace tree_attn
