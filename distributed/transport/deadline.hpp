// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Deadlines of waits for other ranks.
#pragma once

#include "tree_attn/distributed/transport/transport.hpp"
#include "tree_attn/reference/state/require.hpp"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>

namespace tree_attn {

/// "0.5 s".
inline std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", seconds);
  return text;
}

/// Throws std::invalid_argument unless a timeout is at least 0; it may be infinite. With NaN no wait would ever end.
/// @param function that has it as an argument
inline void require_timeout(const char* function, double seconds) {
  require(seconds >= 0, function, ": a timeout of ", seconds, " s");
}

/// The error of a wait that has given up: "rank 1 waited 5 s for a message in two-level, step 3 and gave up".
inline TransportError gave_up(int rank, double seconds, const std::string& waiting, const std::string& doing,
                              int peer = -1) {
  return {TransportError::Kind::kDeadline,
          "rank " + std::to_string(rank) + " waited " + seconds_text(seconds) + " " + waiting +
              (doing.empty() ? "" : " " + doing) + " and gave up",
          rank, peer};
}

/// The error of a message that has another length than its receiver expected.
inline TransportError another_length(int rank, std::size_t expected, int from, std::size_t got) {
  return {TransportError::Kind::kLength,
          "rank " + std::to_string(rank) + " expected " + std::to_string(expected) + " bytes from rank " +
              std::to_string(from) + " and got " + std::to_string(got),
          rank, from};
}

/// Observes every wait of one rank, and ends waits that take too long. One wait at a time.
class Deadline {
 public:
  virtual ~Deadline() = default;
  /// Seconds that one wait may take without progress; infinity for no limit.
  virtual double seconds() const = 0;
  /// Whether waits can end early.
  bool is_limited() const { return std::isfinite(seconds()); }
  /// Sets what this rank is doing, for the message of a missed deadline: "in two-level, step 3".
  virtual void doing(std::string_view phrase) { doing_ = phrase; }
  /// That phrase; empty before the first.
  const std::string& activity() const { return doing_; }
  /// Begins a wait: "for all ranks to agree", "in MPI_Comm_dup".
  virtual void begin_wait(std::string_view phrase) = 0;
  /// The wait has made progress, for instance a part of a message has arrived.
  virtual void progress() = 0;
  virtual void end_wait() = 0;
  /// Called repeatedly by waits that poll, and from time to time by long computations. @throws TransportError
  virtual void poll() = 0;
  /// Held while the main thread uses MPI, if another thread of this process may use it meanwhile. Not for waits alone: a
  /// rank that computes is heard of by other machines through that thread.
  virtual std::unique_lock<std::recursive_mutex> use_mpi() { return {}; }

 private:
  std::string doing_;
};

/// A wait that lasts as long as this object.
class Waiting {
 public:
  Waiting(Deadline& deadline, std::string_view phrase) : deadline_(deadline) { deadline_.begin_wait(phrase); }
  ~Waiting() { deadline_.end_wait(); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  void progress() const { deadline_.progress(); }

 private:
  Deadline& deadline_;
};

/// Limits the time without progress of each wait that polls. It cannot interrupt a blocking call of MPI; a program that
/// needs that uses a Watchdog.
class TimeLimit : public Deadline {
 public:
  /// @param rank this rank, named in the error @param seconds may be infinite
  /// @throws std::invalid_argument as require_timeout()
  TimeLimit(int rank, double seconds) : rank_(rank), seconds_(seconds) { require_timeout("TimeLimit", seconds); }
  double seconds() const override { return seconds_; }
  void begin_wait(std::string_view phrase) override { waiting_ = phrase, since_ = Clock::now(); }
  void progress() override { since_ = Clock::now(); }
  void end_wait() override { waiting_.clear(); }
  void poll() override {
    if (waiting_.empty() || !(std::chrono::duration<double>(Clock::now() - since_).count() > seconds_)) return;
    throw gave_up(rank_, seconds_, waiting_, activity());
  }

 protected:
  int rank() const { return rank_; }
  bool is_waiting() const { return !waiting_.empty(); }

 private:
  using Clock = std::chrono::steady_clock;
  int rank_;
  double seconds_;
  std::string waiting_;
  Clock::time_point since_{};
};

}  // namespace tree_attn
