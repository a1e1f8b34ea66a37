// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A thread that ends the job when a rank no longer answers.
#pragma once

#include "tree_attn/distributed/job/launcher.hpp"
#include "tree_attn/distributed/job/pulse_board.hpp"
#include "tree_attn/distributed/transport/deadline.hpp"

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

namespace tree_attn {

/// One per rank, from before MPI_Init to after MPI_Finalize. Its thread beats for this rank and observes the others
/// (PulseObserver): it also ends a process whose main thread is in a call that does not return. The job ends with one line
/// on standard error and status 2 on every rank; the launcher ends processes that are stopped.
class Watchdog : public Deadline {
 public:
  /// With a board of this rank alone, on which a wait may take 30 s, or five time limits; start() starts the thread.
  /// @param timeout seconds; with infinity there is neither a thread nor a deadline
  /// @throws std::invalid_argument as require_timeout()
  Watchdog(const LaunchedJob& job, double timeout);
  /// After MPI_Finalize: no rank waits for this one.
  ~Watchdog() override;
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Starts the thread. @throws TransportError "the system started no thread for the watchdog"
  void start();

  double seconds() const override { return timeout_; }
  void doing(std::string_view phrase) override;
  /// A phrase with "all ranks" in it is of a wait for what another rank has to do first.
  void begin_wait(std::string_view phrase) override;
  void progress() override { ++board_->own().moves; }
  /// Before MPI_Finalize, which makes no progress that is seen: it may take 30 s.
  void ends();
  /// Ends this process if the job has ended, which a rank that was stopped finds when it continues.
  void end_wait() override;
  void poll() override;
  std::unique_lock<std::recursive_mutex> use_mpi() override;

  const PulseBoard& board() const { return *board_; }
  /// Moves to a board that all ranks of the machine have. @param late see PulseObserver
  void move_to(std::unique_ptr<PulseBoard> board, double late);
  /// Sets the function that exchanges messages with other machines; an empty function ends the exchange. The main thread
  /// calls it in waits that poll, the watchdog's thread while the main thread uses no MPI.
  void exchange_by(std::function<void()> exchange);
  /// Ends the job with status 2. The first rank to do so writes the line.
  [[noreturn]] void end_job(const std::string& line) const;

 private:
  void watch(const std::stop_token& stop);
  std::string name() const { return "rank " + std::to_string(board_->rank()); }

  double timeout_;  ///< seconds
  LaunchedJob job_;
  std::unique_ptr<PulseBoard> board_;
  std::optional<PulseObserver> observer_;
  mutable std::mutex text_mutex_;
  std::string waiting_;  ///< empty while this rank computes
  mutable std::recursive_mutex mpi_mutex_;
  std::function<void()> exchange_;
  std::mutex mutex_;  ///< of the board and the observer
  std::condition_variable_any wake_;
  std::jthread thread_;
};

}  // namespace tree_attn
