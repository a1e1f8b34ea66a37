// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The deadline of everything that waits: a thread that ends the job when a rank no longer answers.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "distributed/transport/heartbeat.hpp"

namespace tree_attn {

/// One per rank, from before MPI_Init to after MPI_Finalize.
///
/// Its thread shows that this process runs, and observes the other ranks (heartbeat.hpp): those of its machine at all times,
/// those of other machines while their pulses arrive (pulse_exchange.hpp). The job ends with one line on standard error and
/// status 2 on every rank; what is stopped on another machine, mpirun ends.
class Watchdog {
 public:
  /// @param timeout seconds; infinity: no thread, and no deadline
  Watchdog(const Launch& launch, double timeout);
  /// Waits until the other ranks of the machine have left MPI as well: no other thread could end one that hangs in MPI_Finalize.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Says what this rank does from now on, for the line: "in two-level, step 3".
  void doing(std::string_view phrase) const { own_.doing.set(phrase); }

  /// This rank waits, as long as this lives. Not nested.
  class Waiting {
   public:
    /// @param phrase "for all ranks to agree", "in MPI_Comm_dup"
    Waiting(const Watchdog& watchdog, std::string_view phrase) : watchdog_(watchdog) {
      watchdog_.own_.waiting.set(phrase);
      ++watchdog_.own_.moves;
    }
    /// A rank that was stopped and runs again does not go on in a job that has ended.
    ~Waiting() {
      ++watchdog_.own_.moves;
      if (watchdog_.board_.end()) watchdog_.end_job("");
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    /// Part of what is awaited has come.
    void progress() const { watchdog_.own_.moves += 2; }

   private:
    const Watchdog& watchdog_;
  };

  /// MPI has started, and so have all ranks.
  void mpi_has_started();
  /// Whether there is a deadline, and so a thread.
  bool watches() const { return thread_.joinable(); }
  const PulseBoard& board() const { return board_; }

  /// From now on exchange() calls `step`, which brings the pulses of other machines; an empty function ends that.
  /// @param while_computing the thread may call it, and so pulses arrive while the main thread computes
  void exchange_by(std::function<void()> step, bool while_computing);
  /// Exchanges pulses now, unless another thread does. The thread calls it at every look; the job ends if it throws.
  void exchange() const;

  /// Ends the job with status 2. The first rank to do so writes the line.
  [[noreturn]] void end_job(const std::string& line) const;

 private:
  void watch(const std::stop_token& stop);

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
