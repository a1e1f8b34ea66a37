// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The text of a pulse, which other processes read, and the first pulse of a rank.
#include "distributed/transport/pulse_board.hpp"

#include <doctest/doctest.h>

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

}  // namespace tree_attn
