// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What a rank concludes from the pulses of all ranks: whether the job hangs, and which ranks are to blame.
#pragma once

#include "tree_attn/distributed/job/pulse_board.hpp"

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tree_attn {

/// Watches the pulses on behalf of one rank.
///
/// Two conditions end a job: a rank has not beaten for `timeout` seconds; or all ranks beat, but all have been waiting for
/// `timeout` seconds and none has made progress. A rank that computes, or writes a file, meets neither. During MPI_Init the
/// second condition needs at least 30 s, since the library may be looking up a host name.
///
/// A rank is judged by its own machine first: other machines allow 2 s more. So the message names the rank that stopped, and
/// not all ranks of its machine, whose pulses stop arriving if the stopped rank is the one that sends them. Without
/// MPI_THREAD_MULTIPLE, the pulses of another machine arrive only while the main thread of the sending rank polls. Since
/// that rank may compute for long, their silence then ends no job; a machine whose ranks are all stopped, or that hangs in a
/// blocking call of MPI, goes unnoticed by the others.
class PulseObserver {
 public:
  /// @throws std::invalid_argument as require_timeout()
  PulseObserver(const PulseBoard& board, int rank, double timeout);

  /// Examines the pulses. @param elapsed seconds that this rank itself was running since the last call
  /// @return the message that ends the job, if the job must end and this rank is the one to say so: the lowest that answers
  std::optional<std::string> look(double elapsed);

  /// Seconds beyond `timeout` that a rank of another machine may be silent, so that its own machine reports it first.
  static constexpr double kLate = 2;

  std::atomic<bool> started = false;          ///< MPI_Init has returned on every rank
  std::atomic<bool> hears_computing = false;  ///< pulses of other machines arrive also while their ranks compute

 private:
  struct Age {
    std::uint64_t beats = 0;
    double silent = 0;  ///< seconds since beats changed
  };
  /// Seconds of silence after which a rank no longer answers.
  double limit(const Pulse& pulse) const;
  std::string line(const std::string& what) const;

  const PulseBoard& board_;
  int rank_;
  double timeout_;
  std::vector<Age> ages_;
  std::uint64_t moves_ = 0;  ///< of all ranks together
  double still_ = 0;         ///< seconds since moves_ changed
  double incomplete_ = 0;    ///< seconds for which a rank of this machine was missing
};

}  // namespace tree_attn
