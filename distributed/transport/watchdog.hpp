// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The deadline of everything that waits: a thread that ends the job when a rank no longer answers.
#pragma once

#include "distributed/transport/deadline.hpp"
#include "distributed/transport/heartbeat.hpp"

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace tree_attn {

/// One per rank, from before MPI_Init to after MPI_Finalize.
///
/// Its thread shows that this process runs, and observes the other ranks (heartbeat.hpp): those of its machine at all times,
/// those of other machines while their pulses arrive (pulse_exchange.hpp). The job ends with one line on standard error and
/// status 2 on every rank; what is stopped on another machine, mpirun ends.
class Watchdog : public Deadline {
 public:
  /// @param timeout seconds; infinity: no thread, and no deadline
  Watchdog(const Launch& launch, double timeout);
  /// Waits until the other ranks of the machine have left MPI as well: no other thread could end one that hangs in
  /// MPI_Finalize.
  ~Watchdog() override;
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void doing(std::string_view phrase) override { own_.doing.set(phrase); }
  void begin_wait(std::string_view phrase) override;
  void progress() override { own_.moves += 2; }
  /// A rank that was stopped and runs again does not go on in a job that has ended.
  void end_wait() override;
  /// Exchanges pulses now, unless another thread does. The thread calls it at every look; the job ends if that fails.
  void poll() override { exchange(); }

  /// MPI has started, and so have all ranks.
  void mpi_has_started();
  /// Whether there is a deadline, and so a thread.
  bool watches() const { return thread_.joinable(); }
  const PulseBoard& board() const { return board_; }

  /// From now on poll() calls `step`, which brings the pulses of other machines; an empty function ends that.
  /// @param while_computing the thread may call it, and so pulses arrive while the main thread computes
  void exchange_by(std::function<void()> step, bool while_computing);
  /// Ends the job with status 2. The first rank to do so writes the line.
  [[noreturn]] void end_job(const std::string& line) const;

 private:
  void watch(const std::stop_token& stop);
  void exchange() const;

  PulseBoard board_;
  Pulse& own_;
  PulseObserver observer_;
  bool one_exit_ends_job_;
  double tick_;  ///< seconds between two looks
  mutable std::mutex exchange_mutex_;
  mutable std::function<void()> exchange_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;
};

}  // namespace tree_attn
