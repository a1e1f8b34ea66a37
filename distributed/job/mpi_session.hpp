// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief MPI_Init to MPI_Finalize under a watchdog, for a program that owns the whole job.
#pragma once

#include "tree_attn/distributed/job/watchdog.hpp"
#include "tree_attn/distributed/transport/mpi_ranks.hpp"

#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

namespace tree_attn {

/// Starts and ends MPI, under a watchdog that ends the job if a rank does not answer for `timeout` seconds.
///
/// The library itself accepts any communicator (MpiRanks); this class is for programs that let it manage MPI. Every wait for
/// another rank is announced to the watchdog, including MPI_Init and MPI_Finalize.
///
/// Ranks of one machine share a board of pulses. Of every other machine the lowest rank says twice a second, in a message of
/// one byte, that its ranks are there, and whether one of them computes or has made progress. The main thread sends it in
/// waits that poll; while it computes, the watchdog's thread does, for which MPI_THREAD_SERIALIZED is enough. An MPI without
/// that gets no messages: then a machine that is silent as a whole goes unnoticed by the others.
class MpiSession {
 public:
  /// Starts MPI; an error ends the job as in abandon(). @param timeout seconds, may be infinite @throws std::bad_alloc
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

 private:
  /// What a machine says.
  enum Word : char { kWaits, kMoves, kEnds, kLeaves };
  /// Another machine, as its lowest rank.
  struct Machine {
    int rank;
    Word said = kWaits;  ///< to it, last
    bool has_left = false;
    MPI_Request sent = MPI_REQUEST_NULL;
  };
  void start(int* argc, char*** argv);
  /// Puts the ranks of a machine on one board, and opens the messages between machines. @param any_thread may send them
  void join_machines(bool any_thread);
  void leave_machines();
  void exchange();
  void say(Word word);
  void hear();

  LaunchedJob launch_;
  Watchdog watchdog_;
  std::optional<MpiRanks> ranks_;
  std::vector<Machine> others_;  ///< none unless this rank is the lowest of its machine
  bool several_machines_ = false;
  std::uint64_t moves_ = 0;  ///< of this machine, when it last spoke
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace tree_attn
