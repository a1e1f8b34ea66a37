// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The transport over MPI, and everything else that the program asks of MPI, under the eyes of the watchdog.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "distributed/transport/pulse_exchange.hpp"
#include "distributed/transport/transport.hpp"
#include "distributed/transport/watchdog.hpp"

namespace tree_attn {

/// MPI from its start to its end, and the few collective questions that ranks ask each other outside the decode step.
///
/// Whatever can wait for another rank, the start and the end of MPI included, is announced to the watchdog, which ends the
/// job where that rank does not answer for `timeout` seconds.
///
/// Unless the launcher says that all ranks are on one machine, the session asks for MPI_THREAD_MULTIPLE, so that the
/// watchdog's thread can exchange pulses with other machines. Where MPI does not grant it, the main thread does so in
/// await() and exchange_pulses(); PulseObserver says what is then not noticed.
class MpiSession {
 public:
  /// Starts MPI. @param timeout seconds, may be infinite @throws TransportError
  MpiSession(int* argc, char*** argv, double timeout);
  /// Ends MPI.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// What the launcher said of the job.
  const Launch& launch() const { return launch_; }

  /// Tells the watchdog what this rank does from now on: "in two-level, step 3".
  void doing(std::string_view phrase) const { watchdog_.doing(phrase); }
  /// Tells it that this rank waits for others, as long as the result lives: "in MPI_Comm_dup".
  Watchdog::Waiting waiting(std::string_view phrase) const { return {watchdog_, phrase}; }
  /// Exchanges pulses with other machines, if it is time. For long computations without await().
  void exchange_pulses() const { watchdog_.exchange(); }
  /// Waits for `what` until the requests are complete, polling. @throws TransportError if MPI fails
  void await(std::span<MPI_Request> requests, const std::string& what) const;

  /// Waits for all ranks.
  void barrier() const;
  /// Largest and smallest of a number over all ranks; NaN-free numbers only.
  double largest(double number) const;
  std::uint64_t largest(std::uint64_t number) const;
  std::uint64_t smallest(std::uint64_t number) const;
  /// The number that rank 0 has.
  std::uint64_t of_first(std::uint64_t number) const;
  /// Sum of a number over all ranks.
  std::int64_t sum(std::int64_t number) const;

  /// Asks all ranks whether they are well; if any is not, every rank throws InputError with the same line: that of the
  /// first such rank, with the rank in front unless all ranks say the same.
  void agree(const std::optional<std::string>& problem) const;

  /// Nodes found by shared memory, or pretended: every `ranks_per_node` consecutive ranks, 0 for found ones.
  Topology topology(int ranks_per_node) const;

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
  int rank_ = 0, size_ = 1;
  std::unique_ptr<PulseExchange> exchange_;  ///< nothing if all ranks share one board, or there is no deadline
};

/// Messages as MPI_Isend and MPI_Irecv; long ones go in pieces of 64 MiB: counts are int, and each piece that arrives is
/// progress.
class MpiTransport : public Transport {
 public:
  MpiTransport(const MpiSession& session, Topology topology);
  ~MpiTransport() override;
  void wait() override;
  void progress() override;

 protected:
  void start_send(std::span<const std::byte> bytes, int to) override;
  void start_receive(std::span<std::byte> bytes, int from) override;

 private:
  const MpiSession& session_;
  MPI_Comm comm_ = MPI_COMM_WORLD;
  std::vector<MPI_Request> requests_;
};

}  // namespace tree_attn
