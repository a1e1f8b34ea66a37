// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exchange of pulses between machines: the lowest rank of each machine sends the pulses of its ranks to the lowest
/// ranks of the other machines.
#pragma once

#include "tree_attn/distributed/job/pulse_board.hpp"

#include <mpi.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace tree_attn {

/// Copies the pulses of every machine to the boards of all others, with at most one message in flight per pair and
/// direction.
///
/// Only the constructor and the destructor wait for other ranks. One thread at a time may call step(): any thread if MPI
/// provides MPI_THREAD_MULTIPLE, otherwise the thread that called the constructor; calls from other threads do nothing.
class PulseExchange {
 public:
  /// Duplicates the communicator; collective over it. @param comm the ranks of the board
  /// @param machine_of_rank for each rank the lowest rank of its machine @param any_thread MPI grants MPI_THREAD_MULTIPLE
  /// @throws TransportError
  PulseExchange(const PulseBoard& board, MPI_Comm comm, const std::vector<int>& machine_of_rank, bool any_thread);
  /// Frees the communicator; collective, once finished() is true on every rank.
  ~PulseExchange();
  PulseExchange(const PulseExchange&) = delete;
  PulseExchange& operator=(const PulseExchange&) = delete;

  /// Receives and sends pulses every 50 ms, also the news that the job ends. @throws TransportError
  void step();

  bool any_thread() const { return any_thread_; }

  /// Announces that the ranks of this machine leave, so that no other machine reports them as silent.
  void finish() { finishing_ = true; }
  /// Whether the last messages from and to all other machines are complete.
  bool finished();

 private:
  enum News : std::uint64_t { kRuns, kEnds, kLeaves };
  /// The pulse of one rank.
  struct Snapshot {
    std::uint64_t news;  ///< of its machine
    std::uint64_t beats, moves;
    std::array<char, SharedText::kBytes> doing, waiting;
  };
  /// Another machine, as its lowest rank.
  struct Peer {
    int rank;
    std::vector<int> ranks = {};  ///< of its machine
    std::vector<Snapshot> arriving = {}, leaving = {};
    MPI_Request receive = MPI_REQUEST_NULL, send = MPI_REQUEST_NULL;
    bool has_left = false, knows_that_we_leave = false;
  };
  void start_receive(Peer& peer);
  void start_send(Peer& peer);
  void take(Peer& peer);

  const PulseBoard& board_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::vector<int> ranks_;   ///< of this machine
  std::vector<Peer> peers_;  ///< none unless this rank is the lowest of its machine
  bool any_thread_, finishing_ = false;
  std::thread::id thread_ = std::this_thread::get_id();
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace tree_attn
