// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Pulses that ranks with boards of their own, as on machines of their own, send each other.
#include "tree_attn/distributed/job/pulse_exchange.hpp"
#include "tree_attn/tests/support/mpi_test_session.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <numeric>
#include <optional>
#include <thread>

namespace tree_attn::test {
namespace {

/// A machine of one rank.
struct Machine {
  Machine() {
    std::vector<int> machines(static_cast<std::size_t>(session().ranks().size()));
    std::iota(machines.begin(), machines.end(), 0);
    exchange.emplace(board, session().ranks().comm(), machines, false);
  }
  /// Exchanges pulses until something is true on this rank, for 10 s at most.
  bool comes(const std::function<bool()>& what) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!what() && std::chrono::steady_clock::now() < end) exchange->step();
    return what();
  }
  bool all_others(const std::function<bool(int rank, const Pulse& pulse)>& are) const {
    for (int rank = 0; rank < session().ranks().size(); ++rank) {
      if (rank != session().ranks().rank() && !are(rank, board.pulses()[static_cast<std::size_t>(rank)])) return false;
    }
    return true;
  }
  /// As a session does.
  void leave() {
    session().ranks().barrier();
    exchange->finish();
    CHECK(comes([&] { return exchange->finished(); }));
  }

  LaunchedJob job{"", session().ranks().rank(), session().ranks().size(), false, 1, ""};
  PulseBoard board{job};
  Pulse& own = board.pulses()[static_cast<std::size_t>(job.rank)];
  std::optional<PulseExchange> exchange;
};

}  // namespace

TEST_CASE("pulse exchange: what ranks say arrives on the boards of other machines, again and again") {
  Machine machine;
  const auto beats = [](int rank, int round) { return static_cast<std::uint64_t>(1000 * round + 10 * rank); };
  CHECK(machine.all_others([](int, const Pulse& pulse) { return pulse.beats == 1; }));
  for (int round = 1; round <= 3; ++round) {
    machine.own.doing.set("in step " + std::to_string(round));
    machine.own.waiting.set("for rank " + std::to_string(machine.job.rank));
    machine.own.moves = static_cast<std::uint64_t>(round);
    machine.own.process = 4711;
    machine.own.beats = beats(machine.job.rank, round);
    CHECK(machine.comes([&] {
      return machine.all_others([&](int rank, const Pulse& pulse) { return pulse.beats == beats(rank, round); });
    }));
    machine.all_others([&](int rank, const Pulse& pulse) {
      CHECK(pulse.doing.get() == "in step " + std::to_string(round));
      CHECK(pulse.waiting.get() == "for rank " + std::to_string(rank));
      CHECK(pulse.moves == static_cast<std::uint64_t>(round));
      CHECK(!pulse.is_here());
      CHECK(!pulse.left);
      return true;
    });
    // Ranks that are ahead still send for those that are not.
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
    machine.comes([&] { return std::chrono::steady_clock::now() > end; });
    session().ranks().barrier();
  }
  CHECK(!machine.board.end());
  CHECK((session().ranks().size() == 1 || !machine.exchange->finished()));
  machine.leave();
  CHECK(machine.all_others([](int, const Pulse& pulse) { return pulse.left.load(); }));
}

TEST_CASE("pulse exchange: when the job ends on one machine, it ends on all") {
  Machine machine;
  if (session().ranks().rank() == 0) CHECK(machine.board.claim_last_word());
  CHECK(machine.comes([&] { return machine.board.end().has_value(); }));
  // Rank 0 still sends for those that are behind.
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  machine.comes([&] { return std::chrono::steady_clock::now() > end; });
  session().ranks().barrier();
  machine.leave();
}

TEST_CASE("pulse exchange: a thread that may not call MPI exchanges nothing") {
  Machine machine;
  machine.own.beats = 5;
  for (int i = 0; i < 5; ++i) {
    std::thread([&] { machine.exchange->step(); }).join();
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
  }
  CHECK(machine.all_others([](int, const Pulse& pulse) { return pulse.beats == 1; }));
  session().ranks().barrier();
  machine.leave();
}

}  // namespace tree_attn::test
