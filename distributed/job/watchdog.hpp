// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A thread that ends the job when a rank no longer answers.
#pragma once

#include "tree_attn/distributed/job/pulse_observer.hpp"
#include "tree_attn/distributed/transport/deadline.hpp"

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace tree_attn {

/// One per rank, from before MPI_Init to after MPI_Finalize.
///
/// Its thread increments the beats of this rank and observes the other ranks (pulse_observer.hpp): ranks of the same machine
/// at all times, ranks of other machines while their pulses arrive (pulse_exchange.hpp). The job ends with one line on
/// standard error and status 2 on every rank; mpirun ends processes that are stopped, and is killed if it then hangs itself
/// (launcher_guard.hpp).
class Watchdog : public Deadline {
 public:
  /// Joins the board; start() starts the thread. @param timeout seconds; with infinity there is neither a thread nor a
  /// deadline @throws std::invalid_argument as require_timeout()
  Watchdog(const LaunchedJob& job, double timeout);
  /// Waits until all ranks of the machine have left MPI, since only this thread can end a rank that hangs in MPI_Finalize.
  ~Watchdog() override;
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Starts the thread. @throws TransportError "the system started no thread for the watchdog"
  void start();

  double seconds() const override { return timeout_; }
  void doing(std::string_view phrase) override { own_.doing.set(phrase); }
  void begin_wait(std::string_view phrase) override;
  void progress() override { own_.moves += 2; }
  /// Ends this process if the job has ended, which a rank that was stopped finds when it continues.
  void end_wait() override;
  /// Exchanges pulses now, unless another thread is doing so. The job ends if that fails.
  void poll() override { exchange(); }

  /// To be called when MPI has started on all ranks.
  void mpi_has_started();
  const PulseBoard& board() const { return board_; }

  /// Sets the function that exchanges pulses with other machines; an empty function ends the exchange.
  /// @param while_computing the thread of the watchdog may call it, so that pulses arrive while the main thread computes
  void exchange_by(std::function<void()> step, bool while_computing);
  /// Ends the job with status 2 and without the temporary files of this process. The first rank to do so writes the line.
  [[noreturn]] void end_job(const std::string& line) const;

 private:
  void watch_or_end(const std::stop_token& stop);
  void watch(const std::stop_token& stop);
  void exchange() const;

  double timeout_;  ///< seconds
  PulseBoard board_;
  Pulse& own_;
  PulseObserver observer_;
  bool one_exit_ends_job_;
  int launcher_;
  double tick_;       ///< seconds between two calls of PulseObserver::look()
  std::string name_;  ///< "rank 1"; empty if the job has only one
  mutable std::mutex exchange_mutex_;
  mutable std::function<void()> exchange_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;
};

}  // namespace tree_attn
