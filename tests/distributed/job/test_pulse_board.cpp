// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Pulses in memory that processes share, and what a rank that waits concludes from them.
#include "tree_attn/distributed/job/pulse_board.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tree_attn {
namespace {

/// Of three ranks, of which two are of this machine, and the last if it is said to be: what a rank concludes that waits.
struct Watch {
  std::string end;  ///< the second at which the job ends, and why; "" if it does not
  double seconds;   ///< that pass
  std::vector<std::size_t> beating, computing = {};
  bool is_first = true;
  double late = 2;
  bool all_here = true;
};

/// @param has_left a rank that has left, or is not there; 3: none
std::string conclusion(const Watch& watch, std::size_t has_left = 3) {
  const PulseBoard board(0, 3, false);
  const std::span<Pulse> pulses = board.pulses();
  for (std::size_t rank = 0; rank < 3; ++rank)
    pulses[rank].beats = rank != has_left, pulses[rank].process = rank < 2 || watch.all_here ? 1 : 0;
  PulseObserver observer(board, 10, watch.late);
  for (double t = 0; t <= watch.seconds; t += 0.25) {
    for (const std::size_t rank : watch.beating) ++pulses[rank].beats;
    for (const std::size_t rank : watch.computing) ++pulses[rank].moves;
    if (const auto why = observer.look(t == 0 ? 0 : 0.25, watch.is_first))
      return std::to_string(t).substr(0, 4) + ": " + *why;
  }
  return "";
}

}  // namespace

TEST_CASE("pulse board: a rank that has joined has beaten, so that it can be silent") {
  const PulseBoard board(1, 3, false);
  CHECK(board.own().beats == 1);
  CHECK(board.own().process == getpid());
  CHECK(&board.own() == &board.pulses()[1]);
  for (const std::size_t other : {0, 2}) CHECK(board.pulses()[other].beats == 0);
  CHECK(!board.end());
  CHECK(board.claim_last_word());
  CHECK(!board.claim_last_word());
  CHECK(board.end());
}

TEST_CASE("pulse board: another process opens it, and none that is not meant") {
  const PulseBoard board(0, 3, true);
  const PulseBoard::Address address = board.address();
  const pid_t child = fork();
  if (child == 0) {
    const PulseBoard own(1, 3, true);
    const auto opened = own.open(address);
    const bool is_shared = opened != nullptr && opened->pulses()[0].process == getppid() && opened->claim_last_word();
    _exit(is_shared ? 7 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 7));
  CHECK(board.pulses()[1].process == child);
  CHECK(board.moves_here() == 0);
  board.own().moves = 3, board.pulses()[1].moves = 4;
  board.pulses()[2].moves = 5;  // of another machine
  CHECK(board.moves_here() == 7);
  CHECK(board.end());

  // A number of a process or of a file that belongs to something else.
  const PulseBoard other(0, 3, true);
  const std::uint64_t token = address.token;
  CHECK(other.open(address) != nullptr);
  CHECK(board.open({token, getpid(), other.address().file}) == nullptr);
  CHECK(board.open({token, getpid(), STDIN_FILENO}) == nullptr);
  CHECK(board.open({token, getpid(), -1}) == nullptr);
  CHECK(PulseBoard(0, 3, false).open(address) == nullptr);
  CHECK(board.open({token, child, address.file}) == nullptr);
}

TEST_CASE("pulse observer: who is silent is named, by its own machine first, and else that no rank makes progress") {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::string rank_1 = "10.0: rank 1 has not answered for 10 s", none = " no rank has made progress for 1";
  for (const Watch& watch : std::vector<Watch>{
           // Whether others wait or compute.
           {rank_1, 20, {0, 2}},
           {"10.0: ranks 1, 2 have not answered for 10 s", 20, {0}, {}, false},
           {rank_1, 20, {0, 2}, {2}},
           // A rank that computes answers, however long the others wait. Then nothing can move any more: a rank that waits
           // for all lets one speak that does not.
           {"", 1000, {0, 1, 2}, {1}},
           {"12.0:" + none + "2 s", 20, {0, 1, 2}},
           {"12.5:" + none + "2 s", 20, {0, 1, 2}, {}, false},
           {"10.0:" + none + "0 s", 20, {0, 1, 2}, {}, true, 0},
           // On another machine. It may be rank 1 that hears of it.
           {"12.0: rank 2 has not answered for 10 s", 20, {0, 1}, {}, true, 2, false},
           {rank_1, 20, {0, 2}, {}, true, 2, false},
           {rank_1, 20, {0}, {}, true, 2, false},
           {"", 1000, {0, 1}, {}, true, kInfinity, false}}) {
    CHECK(conclusion(watch) == watch.end);
  }
  CHECK(conclusion({"", 20, {0, 2}}, 1) == "12.0:" + none + "2 s");
}

TEST_CASE("pulse observer: ranks that stop together are named together, though they have beaten last at different times") {
  const PulseBoard board(0, 3, false);
  for (Pulse& pulse : board.pulses()) pulse.beats = 1, pulse.process = 1;
  PulseObserver observer(board, 10, 0);
  std::optional<std::string> why;
  for (int i = 0; i < 60 && !why; ++i) {
    ++board.pulses()[0].beats;
    if (i < 3) ++board.pulses()[1].beats;
    why = observer.look(0.25, true);
  }
  CHECK(why == "ranks 1, 2 have not answered for 10 s");
}

}  // namespace tree_attn
