// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief OUT and the report: status 2 leaves every file as it was, and nothing is written where it does not belong.
#include "tests/distributed/program/command.hpp"

#include <sys/inotify.h>

namespace {

namespace fs = std::filesystem;

const Words kDecode{"decode", "--seq-len", "64"};

/// Names and bytes of all that is in a folder.
std::vector<std::pair<std::string, std::string>> contents(const Scratch& scratch) {
  std::vector<std::pair<std::string, std::string>> found;
  for (const std::string& name : scratch.names()) found.emplace_back(name, Scratch::read(scratch.path(name)));
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

TEST_CASE("outputs: input, OUT and report are different files, by whatever name") {
  const Scratch scratch;
  fs::copy_file(kLayer, scratch.path("in"));
  fs::create_hard_link(scratch.path("in"), scratch.path("hard"));
  fs::create_symlink("in", scratch.path("link"));
  const auto before = contents(scratch);
  check_endings({{alone({"decode", "in", "--report", "hard"}), "--report hard is the same file as IN in"},
                 {alone({"decode", "in", "in"}), "OUT in is the same file as IN in; use different files"},
                 {alone({"decode", "in", "new", "--report", "new"}), "--report new is the same file as OUT new"},
                 {alone({"oracle", "in", "link"}), "OUT link is the same file as IN in"},
                 // Only rank 0 writes: it alone says what is wrong.
                 {ranks(2, {"decode", "in", "link"}), "rank 0: OUT link is the same file as IN in"}},
                {.folder = scratch.folder().string()});
  CHECK(contents(scratch) == before);
}

TEST_CASE("outputs: where one of them fails, none is there") {
  const Scratch scratch;
  scratch.write("old", "as it was");
  const Around around{.folder = scratch.folder().string()};
  const auto before = contents(scratch);
  // Standard output is full, closed, or its reader has left.
  const std::string no_table = "cannot write to standard output";
  check_one_line(run(redirected(">/dev/full", {"decode", kLayer, "out", "--report", "report"}), around), no_table);
  check_one_line(run(redirected(">&-", {"decode", kLayer, "old", "--report", "report"}), around), no_table);
  check_one_line(run(redirected(">&- <&-", kDecode + Words{"--report", "report"}), around), no_table);
  const Result mute = run(redirected(">&- 2>&-", {"decode", kLayer, "out"}), around);
  CHECK(mute.status == 2);
  CHECK(mute.err == "");
  check_one_line(run(by_shell("mkfifo pipe; : <pipe & exec 3>pipe; wait; rm pipe; exec \"$0\" \"$@\" >&3",
                              {"decode", kLayer, "out", "--report", "report"}),
                     around),
                 no_table);
  check_one_line(run(redirected(">&-", {"oracle", kLayer, "out"}), around), no_table);
  CHECK(contents(scratch) == before);

  // Standard input is never needed.
  check_success(run(redirected("<&-", {"decode", kLayer, "out"}), around), {kLayerIgnored});
}

TEST_CASE("outputs: the report is renamed before OUT, so that where OUT is new, so is the report") {
  const Scratch scratch;
  const int events = ::inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  REQUIRE(::inotify_add_watch(events, scratch.folder().c_str(), IN_MOVED_TO) >= 0);
  check_success(run(alone({"decode", kLayer, "out", "--report", "report"}), {.folder = scratch.folder().string()}),
                {kLayerIgnored});
  alignas(inotify_event) char buffer[4096];
  const ssize_t n = ::read(events, buffer, sizeof buffer);
  ::close(events);
  std::vector<std::string> renamed;
  for (ssize_t at = 0; at < n;) {
    const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
    renamed.emplace_back(event->name);
    at += static_cast<ssize_t>(sizeof *event + event->len);
  }
  CHECK(renamed == std::vector<std::string>{"report", "out"});
}
