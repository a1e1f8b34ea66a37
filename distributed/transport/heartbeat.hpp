// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Heartbeats of the ranks of a machine, in memory that they share, and what an observer concludes from them.
#pragma once

#include "distributed/transport/launcher.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tree_attn {

/// A text of up to 63 bytes that one process writes and others read. A text read while it changes may be a mixture.
class SharedText {
 public:
  /// Longer texts are cut.
  void set(std::string_view text);
  std::string get() const;

 private:
  std::array<std::atomic<std::uint64_t>, 8> words_{};
};

/// What one rank lets the others know. All zeros: the rank has not started.
struct alignas(64) Pulse {
  std::atomic<std::uint64_t> beats;  ///< counted up by the rank's watchdog thread: a process that is stopped stands still
  std::atomic<std::uint64_t> moves;  ///< counted up when the main thread starts or ends to wait; odd while it waits
  std::atomic<int> process;          ///< its id; 0: on another machine
  std::atomic<bool> left;            ///< MPI has ended on this rank
  SharedText doing;                  ///< "in two-level, step 3"
  SharedText waiting;                ///< "for all ranks to agree", "in MPI_Comm_dup"

  bool waits() const { return moves % 2 == 1; }
  bool is_here() const { return process != 0; }
};

/// The pulses of a job, one for every rank, in memory that the ranks of one machine share. Those of ranks elsewhere stay at
/// zero until PulseExchange copies them.
///
/// The memory exists before MPI_Init, since that call can hang as well. Hence its name: that of the launcher's process, from
/// the environment and /proc (POSIX shared memory). The name is removed when the last rank of the machine has mapped it.
/// Without a name, or without /dev/shm, a rank shares its memory with no other.
class PulseBoard {
 public:
  explicit PulseBoard(const Launch& launch);
  ~PulseBoard();
  PulseBoard(const PulseBoard&) = delete;
  PulseBoard& operator=(const PulseBoard&) = delete;

  std::span<Pulse> pulses() const { return pulses_; }
  /// Ranks of this machine that should be there, 0 if the launcher does not tell; and those that have mapped the memory.
  int n_expected() const { return n_expected_; }
  int n_joined() const;
  /// Removes the name. Called also once MPI has started, when all ranks have mapped the memory.
  void remove_name() const;

  /// True for the first rank that asks: that one says why the job ends.
  bool claim_last_word() const;
  /// When all ranks are to exit, a moment after the last word; nothing while the job runs.
  std::optional<std::chrono::steady_clock::time_point> end() const;

 private:
  struct Common;
  std::string name_;
  int n_expected_;
  std::size_t n_bytes_;
  Common* common_;
  std::span<Pulse> pulses_;
};

/// Watches the pulses on behalf of one rank.
///
/// Two things end a job: a rank whose heart has stood still for `timeout` seconds, and a job where every heart beats, but
/// every rank has waited for `timeout` seconds without any of them moving. A rank that computes, or writes a file, does
/// neither. In MPI's start the second takes at least 30 s, as the library may then be looking up a host name.
///
/// A rank is judged by its own machine first: the others allow 2 s more. So the line names the rank that stopped, and not
/// its whole machine, whose pulses arrive no more if that rank was the one to send them. Without MPI_THREAD_MULTIPLE, pulses
/// of other machines arrive only while the main thread of the rank that sends them polls. Their silence then ends no job,
/// since that rank may compute for long; a machine whose ranks are all stopped, or that hangs in a blocking call of MPI, is
/// not noticed by the others.
class PulseObserver {
 public:
  PulseObserver(const PulseBoard& board, int rank, double timeout);

  /// Looks once more. @param elapsed seconds for which this rank itself was running since the last look
  /// @return the line that ends the job, if it must end and this rank, the lowest that answers, is to say so
  std::optional<std::string> look(double elapsed);

  /// Seconds that a rank of another machine may be silent beyond `timeout`, for its own machine to say so.
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
