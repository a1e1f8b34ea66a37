// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What a rank concludes from the pulses of others: which rank hangs, which ranks wait for which, and which rank
/// reports it.
#include "tree_attn/distributed/job/pulse_observer.hpp"

#include <doctest/doctest.h>

namespace tree_attn {
namespace {

/// The pulses of three ranks, in memory of this process alone.
struct ThreeRanks {
  ThreeRanks() {
    for (int rank = 0; rank < 3; ++rank) beat(rank), pulse(rank).process = 1;
  }
  Pulse& pulse(int rank) { return board.pulses()[static_cast<std::size_t>(rank)]; }
  void beat(int rank) { ++pulse(rank).beats; }
  void wait(int rank, const char* phrase) {
    pulse(rank).waiting.set(phrase);
    ++pulse(rank).moves;
  }
  /// Lets time pass, with these ranks beating, and returns the first line that `rank` would write, "" if none.
  std::string watch(int rank, double seconds, std::vector<int> beating, bool started = true, bool hears_computing = true) {
    PulseObserver observer(board, rank, 10);
    observer.started = started;
    observer.hears_computing = hears_computing;
    for (double t = 0; t <= seconds; t += 0.5) {
      for (const int each : beating) beat(each);
      if (const auto line = observer.look(t == 0 ? 0 : 0.5)) return *line;
    }
    return "";
  }

  PulseBoard board{LaunchedJob{"", 0, 3, false, 3, ""}};
};

}  // namespace

TEST_CASE("pulse observer: a silent rank is named, with what it does and what the reporting rank does") {
  ThreeRanks job;
  job.pulse(1).doing.set("in two-level, step 3");
  job.wait(0, "for all ranks to agree");
  CHECK(job.watch(0, 9, {0, 2}) == "");
  CHECK(job.watch(0, 11, {0, 2}) ==
        "rank 1 has not answered for 10 s in two-level, step 3 (rank 0 waits for all ranks to agree); --timeout 10");
  job.wait(1, "in MPI_Comm_dup");
  CHECK(job.watch(0, 11, {0, 2}).find("in two-level, step 3, waiting in MPI_Comm_dup (") != std::string::npos);
}

TEST_CASE("pulse observer: the lowest rank that answers reports, and no other") {
  ThreeRanks job;
  CHECK(job.watch(2, 20, {0, 2}) == "");
  CHECK(job.watch(2, 20, {1, 2}) == "");
  CHECK(job.watch(1, 20, {1, 2}).starts_with("rank 0 has not answered"));
  CHECK(job.watch(2, 20, {2}).starts_with("ranks 0, 1 have not answered"));
}

TEST_CASE("pulse observer: a rank that computes answers, however long the others wait") {
  ThreeRanks job;
  job.wait(0, "for a message");
  job.wait(1, "for a message");
  CHECK(job.watch(0, 1000, {0, 1, 2}) == "");
  // It waits as well: now nothing can move any more.
  job.wait(2, "for rank 0");
  CHECK(job.watch(0, 9, {0, 1, 2}) == "");
  CHECK(job.watch(1, 20, {0, 1, 2}) == "");
  CHECK(job.watch(0, 20, {0, 1, 2}) ==
        "no rank has made progress for 10 s: ranks 0, 1 wait for a message; rank 2 waits for rank 0; --timeout 10");
}

TEST_CASE("pulse observer: parts of a message that arrive are progress") {
  ThreeRanks job;
  for (int rank = 0; rank < 3; ++rank) job.wait(rank, "for a message");
  PulseObserver observer(job.board, 0, 10);
  observer.started = true;
  for (int i = 0; i < 100; ++i) {
    for (int rank = 0; rank < 3; ++rank) job.beat(rank);
    if (i % 8 == 0) job.pulse(2).moves += 2;
    CHECK(!observer.look(1));
  }
}

TEST_CASE("pulse observer: a rank that has left is not reported") {
  ThreeRanks job;
  job.pulse(1).left = true;
  CHECK(job.watch(0, 100, {0, 2}) == "");
}

TEST_CASE("pulse observer: a rank of another machine is named 2 s later, where pulses arrive while it computes") {
  ThreeRanks job;
  job.pulse(2).process = 0;
  CHECK(job.watch(0, 11, {0, 1}) == "");
  CHECK(job.watch(1, 30, {0, 1}) == "");
  CHECK(job.watch(0, 13, {0, 1}) == "rank 2 has not answered for 10 s (rank 0 computes); --timeout 10");
  CHECK(job.watch(0, 1000, {0, 1}, true, false) == "");
  // Ranks of one machine that stop together are named together.
  job.pulse(1).process = 0;
  PulseObserver observer(job.board, 0, 10);
  observer.started = observer.hears_computing = true;
  std::optional<std::string> line;
  for (int i = 0; i < 30 && !line; ++i) {
    job.beat(0);
    if (i == 2) job.beat(1);
    line = observer.look(0.5);
  }
  CHECK(line == "ranks 1, 2 have not answered for 10 s (rank 0 computes); --timeout 10");
  job.pulse(1).process = 1;
  // Three machines: the lowest rank says so, on whichever it is.
  job.pulse(0).process = 0;
  CHECK(job.watch(1, 30, {0, 1}) == "");
  job.pulse(0).process = 1;
  job.pulse(2).left = true;
  CHECK(job.watch(0, 1000, {0, 1}) == "");
}

TEST_CASE("pulse observer: the machine of a silent rank reports it, though a lower rank answers elsewhere") {
  ThreeRanks job;
  job.pulse(0).process = 0;
  CHECK(job.watch(1, 11, {0, 1}).starts_with("rank 2 has not answered for 10 s"));
  // The one that stands still brought the pulses of the other machine.
  CHECK(job.watch(2, 11, {2}).starts_with("rank 1 has not answered for 10 s"));
}

TEST_CASE("pulse observer: ranks that all wait on several machines have 2 s more") {
  for (const bool hears_computing : {true, false}) {
    ThreeRanks job;
    job.pulse(2).process = 0;
    for (int rank = 0; rank < 3; ++rank) job.wait(rank, "for a message");
    CHECK(job.watch(0, 11.5, {0, 1, 2}, true, hears_computing) == "");
    CHECK(job.watch(2, 30, {0, 1, 2}, true, hears_computing) == "");
    CHECK(job.watch(0, 13, {0, 1, 2}, true, hears_computing) ==
          "no rank has made progress for 12 s: ranks 0, 1, 2 wait for a message; --timeout 10");
    // The last that was heard of it is that it waits: that may be long ago.
    CHECK(job.watch(0, 1000, {0, 1}, true, false) == "");
  }
}

TEST_CASE("pulse observer: during MPI_Init a rank that never started is named, and a slow library is tolerated") {
  ThreeRanks job;  // one process has mapped the memory, three are expected
  job.pulse(1).beats = 0;
  job.wait(0, "in MPI_Init_thread");
  CHECK(job.watch(0, 11, {0, 2}, false) ==
        "rank 1 has not started for 10 s (rank 0 waits in MPI_Init_thread); --timeout 10");

  PulseBoard board(LaunchedJob{"", 0, 3, false, 1, ""});
  PulseObserver observer(board, 0, 10);
  Pulse& own = board.pulses()[0];
  own.process = 1;
  own.waiting.set("in MPI_Init_thread");
  own.moves = 1;
  double seconds = 0;
  for (; seconds < 100; ++seconds) {
    ++own.beats;
    if (observer.look(1)) break;
  }
  CHECK(seconds >= 29);
  CHECK(seconds < 40);
}

}  // namespace tree_attn
