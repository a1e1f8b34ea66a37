// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The pulses of all ranks of a job, in memory that the ranks of one machine share.
#pragma once

#include "tree_attn/distributed/job/launcher.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tree_attn {

/// A text of up to 127 bytes that one process writes and others read. A text that is read while it changes may be a mixture
/// of both.
class SharedText {
 public:
  static constexpr std::size_t kBytes = 128;  ///< with the 0 at its end; longer texts are cut
  void set(std::string_view text);
  std::string get() const;

 private:
  std::array<std::atomic<std::uint64_t>, kBytes / 8> words_{};
};

/// What one rank shows to the others. All zeros: the rank has not started.
struct alignas(64) Pulse {
  std::atomic<std::uint64_t>
      beats;  ///< incremented by the watchdog thread of the rank; constant while its process is stopped
  std::atomic<std::uint64_t> moves;  ///< incremented when the main thread begins or ends a wait; odd during a wait
  std::atomic<int> process;          ///< process id; 0: on another machine
  std::atomic<bool> left;            ///< MPI has ended on this rank
  SharedText doing;                  ///< "in two-level, step 3"
  SharedText waiting;                ///< "for all ranks to agree", "in MPI_Comm_dup"

  bool waits() const { return moves % 2 == 1; }
  bool is_here() const { return process != 0; }
};

/// The pulses of a job, one per rank, in memory that the ranks of one machine share. The pulses of ranks on other machines
/// stay zero until PulseExchange copies them.
///
/// The memory exists before MPI_Init, since that call can hang as well. It is POSIX shared memory, named after the
/// launcher's process (from the environment and /proc). The last rank of the machine to map the memory removes the name; in
/// a job that ends before that, a rank that starts late finds by it that the job has ended.
/// Without a name, or without /dev/shm, the memory of a rank is its own.
class PulseBoard {
 public:
  explicit PulseBoard(const LaunchedJob& job);
  ~PulseBoard();
  PulseBoard(const PulseBoard&) = delete;
  PulseBoard& operator=(const PulseBoard&) = delete;

  std::span<Pulse> pulses() const { return pulses_; }
  /// Ranks expected on this machine, 0 if the launcher does not say.
  int n_expected() const { return n_expected_; }
  /// Ranks that have mapped the memory. All of them have beaten once.
  int n_joined() const;
  /// Removes the name. Also called after MPI_Init, when all ranks have mapped the memory.
  void remove_name() const;
  /// The name as a path, "" if there is none. Not allocated here: also wanted where memory is used up.
  const std::string& path() const { return path_; }

  /// True for the first rank that calls it: this rank writes why the job ends.
  bool claim_last_word() const;
  /// When all ranks are to exit, a moment after claim_last_word(); nothing while the job runs.
  std::optional<std::chrono::steady_clock::time_point> end() const;

 private:
  struct Common;
  std::string name_, path_;
  int n_expected_;
  std::size_t n_bytes_;
  Common* common_;
  std::span<Pulse> pulses_;
};

}  // namespace tree_attn
