// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The text of a pulse, which other processes read, and the first pulse of a rank.
#include "tree_attn/distributed/job/pulse_board.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>

namespace tree_attn {

TEST_CASE("pulse board: a text is cut at 127 bytes") {
  SharedText text;
  CHECK(text.get() == "");
  text.set("for all ranks to agree");
  CHECK(text.get() == "for all ranks to agree");
  text.set(std::string(200, 'x'));
  CHECK(text.get() == std::string(127, 'x'));
  text.set("");
  CHECK(text.get() == "");
}

TEST_CASE("pulse board: a rank that has joined has beaten, so that it can be silent") {
  const PulseBoard board(LaunchedJob{"", 1, 3, false, 3, ""});
  CHECK(board.n_joined() == 1);
  CHECK(board.pulses()[1].beats == 1);
  CHECK(board.pulses()[1].is_here());
  for (const std::size_t other : {0, 2}) {
    CHECK(board.pulses()[other].beats == 0);
    CHECK(!board.pulses()[other].is_here());
  }
}

TEST_CASE("pulse board: a signal that is ignored leaves the name to ranks that have yet to join, and stays ignored") {
  const auto before = std::signal(SIGHUP, SIG_IGN);
  const std::string key = "test-" + std::to_string(getpid());
  const std::filesystem::path file = "/dev/shm/tree_attn-" + std::to_string(getuid()) + "-" + key;
  {
    const PulseBoard board(LaunchedJob{"", 0, 2, false, 2, key});
    REQUIRE(std::filesystem::exists(file));
    std::raise(SIGHUP);
    CHECK(std::filesystem::exists(file));
    board.remove_name();
    CHECK(!std::filesystem::exists(file));
  }
  CHECK((std::signal(SIGHUP, before) == SIG_IGN));
}

}  // namespace tree_attn
