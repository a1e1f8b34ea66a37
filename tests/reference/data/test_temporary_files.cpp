// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Temporary files are removed if a signal or _exit() ends their process; a replaced file is not.
#include "tree_attn/reference/data/output_file.hpp"
#include "tree_attn/reference/data/temporary_files.hpp"
#include "tree_attn/tests/support/ending.hpp"
#include "tree_attn/tests/support/tensor_files.hpp"

#include <doctest/doctest.h>

#include <csignal>

using namespace tree_attn;
using test::ending_of;

TEST_CASE("temporary files: a signal removes those of open output files, and ends the process") {
  for (const int ending : {SIGINT, SIGTERM, SIGHUP}) {
    CAPTURE(ending);
    const Scratch scratch;
    const int status = ending_of([&] {
                         remove_temporary_files_on_signals();
                         OutputFile first(scratch.path("first")), second(scratch.path("second"));
                         first.write("x");
                         second.write("x");
                         if (scratch.names().size() == 2) std::raise(ending);
                       }).status;
    CHECK(status == 128 + ending);
    CHECK(scratch.names().empty());
  }
}

TEST_CASE("temporary files: an ignored signal stays ignored") {
  CHECK(ending_of([] {
          std::signal(SIGHUP, SIG_IGN);
          remove_temporary_files_on_signals();
          std::raise(SIGHUP);
        }).status == 0);
}

TEST_CASE("temporary files: files in place and files that are gone are forgotten, and their entries are used again") {
  const Scratch scratch;
  for (int i = 0; i < 20; ++i) {
    OutputFile unfinished(scratch.path("unfinished")), out(scratch.path("out"));
    unfinished.write("x");
    out.write("text");
    out.put_in_place();
  }
  remember_temporary_file(scratch.write("other", "x"));
  remove_temporary_files();
  forget_temporary_file(scratch.path("other"));
  CHECK(scratch.names() == std::vector<std::string>{"out"});
  CHECK(Scratch::read(scratch.path("out")) == "text");

  scratch.write("other", "y");
  remove_temporary_files();
  CHECK(scratch.names().size() == 2);
}
