// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The exchanges, walked without a transport: who ends with what, in what order, after how many rounds (section 5.3).
#include "tree_attn/distributed/plan/exchange.hpp"

#include <doctest/doctest.h>

#include <numeric>
#include <vector>

namespace tree_attn::exchange_test {
namespace {

using Exchange = std::vector<ExchangeStep> (*)(int size, int me);
/// Whose contributions a member holds, in the order in which they were merged.
using Held = std::vector<int>;

/// The exchanges of all members, and the members' hands while they are walked.
struct Walk {
  std::vector<std::vector<ExchangeStep>> steps;
  std::vector<std::size_t> next;  // the step at which each member stands
  std::vector<Held> held;
  int n_messages = 0;

  Walk(Exchange exchange, int size) : next(static_cast<std::size_t>(size), 0) {
    for (int me = 0; me < size; ++me) {
      steps.push_back(exchange(size, me));
      held.push_back({me});
    }
  }
  const ExchangeStep* at(int me) const {
    const auto i = static_cast<std::size_t>(me);
    return next[i] < steps[i].size() ? &steps[i][next[i]] : nullptr;
  }

  /// What comes from a peer: it must be what `theirs` says, and touch what is here.
  void take(int me, const ExchangeStep& step, const Held& part) {
    Held expected(static_cast<std::size_t>(step.theirs.end - step.theirs.begin));
    std::iota(expected.begin(), expected.end(), step.theirs.begin);
    CHECK(part == expected);
    Held& mine = held[static_cast<std::size_t>(me)];
    if (step.finished) {
      mine = part;
      return;
    }
    // Operands are neighbouring ranges, the left one first.
    const Held& left = step.peer_is_left(me) ? part : mine;
    const Held& right = step.peer_is_left(me) ? mine : part;
    CHECK(left.back() + 1 == right.front());
    Held merged = left;
    merged.insert(merged.end(), right.begin(), right.end());
    mine = merged;
  }

  /// Executes steps whose two sides are both there, until nothing moves. Returns the rounds, everybody stepping at once.
  int run() {
    int n_rounds = 0;
    for (bool moved = true; moved; n_rounds += moved) {
      moved = false;
      const std::vector<Held> before = held;
      std::vector<bool> stepped(steps.size(), false);
      for (int me = 0; me < static_cast<int>(steps.size()); ++me) {
        const ExchangeStep* mine = at(me);
        if (mine == nullptr || stepped[static_cast<std::size_t>(me)] || stepped[static_cast<std::size_t>(mine->peer)])
          continue;
        const int peer = mine->peer;
        const ExchangeStep* theirs = at(peer);
        if (theirs == nullptr || theirs->peer != me) continue;
        // Sends and receives pair up.
        CHECK(mine->sends == theirs->receives);
        CHECK(mine->receives == theirs->sends);
        CHECK((mine->sends || mine->receives));
        n_messages += mine->sends + theirs->sends;
        const ExchangeStep mine_now = *mine, theirs_now = *theirs;
        if (mine_now.receives) take(me, mine_now, before[static_cast<std::size_t>(peer)]);
        if (theirs_now.receives) take(peer, theirs_now, before[static_cast<std::size_t>(me)]);
        for (const int member : {me, peer}) {
          stepped[static_cast<std::size_t>(member)] = true;
          ++next[static_cast<std::size_t>(member)];
        }
        moved = true;
      }
    }
    return n_rounds;
  }

  bool ended() const {
    for (int me = 0; me < static_cast<int>(steps.size()); ++me) {
      if (at(me) != nullptr) return false;
    }
    return true;
  }
};

Held everything(int size) {
  Held all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

int floor_log2(int n) { return std::bit_width(static_cast<unsigned>(n)) - 1; }
int ceil_log2(int n) { return std::bit_width(static_cast<unsigned>(n - 1)); }

}  // namespace

/// @tested{thm_1, Thm. 1}
TEST_CASE("butterfly: every member ends with every contribution once, in rank order, after floor(log2 n) exchanges") {
  for (int size = 1; size <= 40; ++size) {
    CAPTURE(size);
    Walk walk(butterfly, size);
    const int n_rounds = walk.run();
    CHECK(walk.ended());
    for (const Held& held : walk.held) CHECK(held == everything(size));
    // Members more than a power of two cost a round before and a round behind.
    const int m = floor_power_of_two(size);
    CHECK(n_rounds == floor_log2(size) + (size > m ? 2 : 0));
    CHECK(walk.n_messages == m * floor_log2(size) + 2 * (size - m));
  }
}

/// @tested{thm_1, Thm. 1}
TEST_CASE("reduce to first: member 0 ends with every contribution once, in rank order, after ceil(log2 n) rounds") {
  for (int size = 1; size <= 40; ++size) {
    CAPTURE(size);
    Walk walk(reduce_to_first, size);
    const int n_rounds = walk.run();
    CHECK(walk.ended());
    CHECK(walk.held[0] == everything(size));
    CHECK(n_rounds == ceil_log2(size));
    CHECK(walk.n_messages == size - 1);
  }
}

TEST_CASE("broadcast from first: what member 0 has reaches everybody after ceil(log2 n) rounds") {
  for (int size = 1; size <= 40; ++size) {
    CAPTURE(size);
    Walk walk(broadcast_from_first, size);
    for (Held& held : walk.held) held.clear();
    walk.held[0] = everything(size);
    const int n_rounds = walk.run();
    CHECK(walk.ended());
    for (const Held& held : walk.held) CHECK(held == everything(size));
    CHECK(n_rounds == ceil_log2(size));
    CHECK(walk.n_messages == size - 1);
  }
}

TEST_CASE("schedules: nothing is received as a part that is the result, or the other way round") {
  for (int size = 1; size <= 40; ++size) {
    for (int me = 0; me < size; ++me) {
      for (const ExchangeStep& step : butterfly(size, me)) {
        CHECK(step.peer != me);
        CHECK(step.finished == (step.receives && step.theirs == MemberRange{0, size}));
      }
      for (const ExchangeStep& step : reduce_to_first(size, me)) CHECK_FALSE(step.finished);
      for (const ExchangeStep& step : broadcast_from_first(size, me)) CHECK(step.finished == step.receives);
    }
  }
}

TEST_CASE("floor power of two") {
  CHECK(floor_power_of_two(1) == 1);
  CHECK(floor_power_of_two(2) == 2);
  CHECK(floor_power_of_two(3) == 2);
  CHECK(floor_power_of_two(64) == 64);
  CHECK(floor_power_of_two(127) == 64);
}

}  // namespace tree_attn::exchange_test
