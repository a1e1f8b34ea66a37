// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Deadlines of waits for other ranks.
#pragma once

#include "distributed/transport/ranks_text.hpp"
#include "distributed/transport/transport.hpp"
#include "reference/state/require.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

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

/// Limits the time without progress of every wait of one rank for others. One wait at a time.
///
/// A wait polls. A call of MPI that blocks is announced too, for a program that can end its process (CallLimit): here it has
/// no limit.
class Deadline {
 public:
  /// Ranks that a wait is for, in any order: they have not sent, or not received, their messages.
  struct Pending {
    std::vector<int> ranks;
    bool have_sent = false;
  };
  using FindPending = std::function<Pending()>;

  /// @param rank this rank, named in the error @param seconds that one wait may take without progress, may be infinite
  /// @throws std::invalid_argument as require_timeout()
  Deadline(int rank, double seconds) : rank_(rank), seconds_(seconds) { require_timeout("Deadline", seconds); }
  virtual ~Deadline() = default;

  double seconds() const { return seconds_; }
  /// @throws std::invalid_argument as require_timeout()
  void set_seconds(double seconds) { require_timeout("Deadline", seconds), seconds_ = seconds; }
  /// Tests whether waits can end early.
  bool is_limited() const { return std::isfinite(seconds_); }
  /// Sets what this rank is doing, for the message of a missed deadline: "in two-level, step 3".
  void doing(std::string_view phrase) { doing_ = phrase; }
  /// Phrase of the last doing(); empty before the first.
  const std::string& activity() const { return doing_; }
  /// Begins a wait: "for all ranks to agree".
  virtual void begin_wait(std::string_view phrase) { waiting_ = phrase, since_ = polled_ = Clock::now(); }
  /// The wait has made progress, for instance a part of a message has arrived.
  void progress() { since_ = Clock::now(); }
  virtual void end_wait() { waiting_.clear(); }
  /// Called repeatedly by waits. @param find ranks that the error names @throws TransportError if the wait has taken too
  /// long
  virtual void poll(const FindPending& find = {}) {
    if (waiting_.empty()) return;
    // A process that was stopped, or whose machine slept, has not waited meanwhile.
    constexpr std::chrono::seconds kPause{1};
    const auto now = Clock::now();
    if (now - polled_ > kPause) since_ += now - polled_;
    polled_ = now;
    if (std::chrono::duration<double>(now - since_).count() > seconds_) miss(find);
  }
  /// Ends a wait that has taken too long. @param find ranks that the error names @throws TransportError
  [[noreturn]] void miss(const FindPending& find) const {
    auto [ranks, have_sent] = find ? find() : Pending();
    std::ranges::sort(ranks);
    ranks.erase(std::ranges::unique(ranks).begin(), ranks.end());
    throw gave_up(rank_, seconds_, waiting_ + (ranks.empty() ? "" : (have_sent ? " to " : " of ") + ranks_text(ranks)),
                  doing_, ranks.size() == 1 ? ranks[0] : -1);
  }
  /// Begins and ends a call of MPI that blocks, "MPI_Comm_free".
  virtual void begin_call(const char* /*call*/) {}
  virtual void end_call() {}

 protected:
  int rank() const { return rank_; }
  bool is_waiting() const { return !waiting_.empty(); }

 private:
  using Clock = std::chrono::steady_clock;
  int rank_;
  double seconds_;
  std::string doing_, waiting_;
  Clock::time_point since_{}, polled_{};
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

/// Polls until a wait is over, and yields meanwhile: ranks may outnumber cores.
/// @param what for the message of a missed deadline: "a message" @param is_over polls once @param n_left progress lowers it
/// @param find as Deadline::poll() @throws TransportError
template <class IsOver, class Left>
void wait_until(Deadline& deadline, std::string_view what, const IsOver& is_over, const Left& n_left,
                const Deadline::FindPending& find) {
  constexpr int kPolls = 32;
  const auto is_done = [&] {
    for (int i = 0; i < kPolls; ++i)
      if (is_over()) return true;
    return false;
  };
  if (is_done()) return;
  const Waiting waiting(deadline, "for " + std::string(what));
  for (std::size_t n = n_left(); !is_done();) {
    std::this_thread::yield();
    if (const std::size_t now = n_left(); now < n) waiting.progress(), n = now;
    deadline.poll(find);
  }
}

/// A call of MPI that blocks, for as long as this object lives.
class BlockingCall {
 public:
  BlockingCall(Deadline& deadline, const char* call) : deadline_(deadline) { deadline_.begin_call(call); }
  ~BlockingCall() { deadline_.end_call(); }
  BlockingCall(const BlockingCall&) = delete;
  BlockingCall& operator=(const BlockingCall&) = delete;

 private:
  Deadline& deadline_;
};

}  // namespace tree_attn
