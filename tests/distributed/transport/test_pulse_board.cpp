// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The text of a pulse, which other processes read.
#include "distributed/transport/pulse_board.hpp"

#include <doctest/doctest.h>

namespace tree_attn {

TEST_CASE("pulse board: a text is cut at 63 bytes") {
  SharedText text;
  CHECK(text.get() == "");
  text.set("for all ranks to agree");
  CHECK(text.get() == "for all ranks to agree");
  text.set(std::string(100, 'x'));
  CHECK(text.get() == std::string(63, 'x'));
  text.set("");
  CHECK(text.get() == "");
}

}  // namespace tree_attn
