// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The pulses of all ranks of a job, in memory that the ranks of one machine share, and what follows from them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tree_attn {

/// What one rank shows to the others. All zeros: the rank is not there.
struct alignas(64) Pulse {
  std::atomic<std::uint64_t> beats;  ///< incremented by the watchdog's thread; constant while the process is stopped
  std::atomic<std::uint64_t> moves;  ///< incremented while the rank computes, and as it begins or ends a wait
  std::atomic<int> process;          ///< process id; 0: on another machine
};

/// The pulses of a job, one per rank. The memory has no name in the file system: other processes of the machine open it by
/// the descriptor of the process that made it, in /proc. A process that cannot is a machine of its own.
class PulseBoard {
 public:
  /// Where the processes of the machine find the memory.
  struct Address {
    std::uint64_t token;  ///< at its beginning: the number may be that of another process on another machine
    int process, file;
  };

  /// New memory. @param is_shared other processes may open it @throws std::bad_alloc
  PulseBoard(int rank, int size, bool is_shared);
  /// The board of another process instead of this one; null if that process is not of this machine.
  std::unique_ptr<PulseBoard> open(const Address& address) const;
  ~PulseBoard();
  PulseBoard(const PulseBoard&) = delete;
  PulseBoard& operator=(const PulseBoard&) = delete;

  Address address() const;
  int rank() const { return static_cast<int>(rank_); }
  std::span<Pulse> pulses() const { return pulses_; }
  Pulse& own() const { return pulses_[rank_]; }
  /// Of the ranks of this machine together.
  std::uint64_t moves_here() const;

  /// True for the first rank that calls it: this rank writes why the job ends.
  bool claim_last_word() const;
  /// When all ranks are to exit, a moment after claim_last_word(); nothing while the job runs.
  std::optional<std::chrono::steady_clock::time_point> end() const;

 private:
  struct Common;
  PulseBoard(int rank, int size, int file);
  void join();

  std::size_t rank_;
  int file_;
  Common* common_;
  std::span<Pulse> pulses_;
};

/// Watches the pulses for one rank. Two conditions end a job: a rank has not beaten for `timeout` seconds, or no rank
/// computes or makes progress for that long. Ranks of other machines are known by messages (MpiSession), which may be late.
class PulseObserver {
 public:
  /// @param late seconds beyond `timeout` for other machines, and if no rank is silent; may be infinite
  /// @throws std::invalid_argument as require_timeout()
  PulseObserver(const PulseBoard& board, double timeout, double late);

  /// Examines the pulses. @param elapsed seconds that this rank itself was running since the last call
  /// @param is_first of several ranks that wait this one speaks before others
  /// @return why the job must end, if it must: "rank 1 has not answered for 3 s"
  std::optional<std::string> look(double elapsed, bool is_first);

 private:
  struct Age {
    std::uint64_t beats = 0;
    double silent = 0;  ///< seconds since beats changed
  };
  const PulseBoard& board_;
  double timeout_, late_;
  std::vector<Age> ages_;
  std::uint64_t moves_ = 0;  ///< of all ranks together
  double still_ = 0;         ///< seconds since moves_ changed
};

}  // namespace tree_attn
