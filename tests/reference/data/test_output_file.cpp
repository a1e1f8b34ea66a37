// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Output files: links, planted temporary files, replaced files, and several files written together or not at all.
#include "tree_attn/reference/data/output_file.hpp"
#include "tree_attn/tests/support/tensor_files.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

namespace {

using namespace tree_attn;
namespace fs = std::filesystem;

mode_t mode_of(const std::string& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return status.st_mode & 07777;
}

void write_one(const std::string& path, const std::string& text, Streams streams = Streams::kRefused) {
  OutputFile file(path, streams);
  file.write(text);
  OutputFile::put_in_place({&file});
}

/// The message of the error, or "".
template <class Use>
std::string refusal_of(const Use& use) {
  try {
    use();
    return "";
  } catch (const InputError& error) {
    return error.what();
  }
}

/// Temporary files in a folder.
std::vector<std::string> temporaries(const Scratch& scratch) {
  std::vector<std::string> found;
  for (const std::string& name : scratch.names()) {
    if (name.starts_with(".tree_attn-")) found.push_back(name);
  }
  return found;
}

}  // namespace

TEST_CASE("output file: links planted under the names of temporary files are not followed") {
  const Scratch scratch;
  const std::string victim = scratch.write("victim", "as it was"), prefix = ".tree_attn-" + std::to_string(::getpid()) + "-";
  // The numbers in the names are consecutive, so that of this file predicts the next ones.
  unsigned number = 0;
  {
    OutputFile first(scratch.path("first"), Streams::kRefused);
    first.write("x");
    REQUIRE(temporaries(scratch).size() == 1);
    REQUIRE(temporaries(scratch)[0].starts_with(prefix));
    number = static_cast<unsigned>(std::stoul(temporaries(scratch)[0].substr(prefix.size())));
  }
  for (unsigned i = 1; i <= 20; ++i) {
    fs::create_symlink("victim", scratch.path(prefix + std::to_string(number + i) + ".tmp"));
  }
  write_one(scratch.path("out"), "new");
  CHECK(Scratch::read(victim) == "as it was");
  CHECK(Scratch::read(scratch.path("out")) == "new");
  CHECK(!fs::is_symlink(scratch.path("out")));
  CHECK(temporaries(scratch).size() == 20);
}

TEST_CASE("output file: a replaced file keeps its mode, a new one has that of the umask") {
  const Scratch scratch;
  const std::string path = scratch.write("private", "old");
  const mode_t before = ::umask(0027);
  for (const mode_t mode : {0600, 0640, 0755, 0444, 0666}) {
    CAPTURE(mode);
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    OutputFile file(path, Streams::kRefused);
    file.write("new");
    // Other users cannot read it while it is being written either.
    CHECK(mode_of(scratch.path(temporaries(scratch).at(0))) == mode);
    OutputFile::put_in_place({&file});
    CHECK(mode_of(path) == mode);
  }
  write_one(scratch.path("new"), "new");
  ::umask(before);
  CHECK(mode_of(scratch.path("new")) == 0640);
}

TEST_CASE("output file: links are followed, also to a file that does not exist yet") {
  const Scratch scratch;
  fs::create_directory(scratch.path("folder"));
  fs::create_symlink("folder/target", scratch.path("relative"));
  fs::create_symlink(scratch.path("relative"), scratch.path("chain"));
  write_one(scratch.path("chain"), "first");
  CHECK(fs::is_symlink(scratch.path("chain")));
  CHECK(fs::is_symlink(scratch.path("relative")));
  CHECK(Scratch::read(scratch.path("folder/target")) == "first");
  write_one(scratch.path("chain"), "second");
  CHECK(Scratch::read(scratch.path("folder/target")) == "second");
  CHECK(fs::is_symlink(scratch.path("relative")));

  // A link in the target folder of another link is relative to that folder.
  fs::create_symlink("end", scratch.path("folder/middle"));
  fs::create_symlink("folder/middle", scratch.path("start"));
  write_one(scratch.path("start"), "third");
  CHECK(Scratch::read(scratch.path("folder/end")) == "third");
  CHECK(scratch.names().size() == 4);
}

TEST_CASE("output file: an invalid path is refused in one line with the reason") {
  const Scratch scratch;
  const auto check_refused = [&](const std::string& path, const std::string& reason) {
    CHECK(refusal_of([&] { OutputFile(path, Streams::kAllowed); }) == path + ": cannot write: " + reason);
  };
  scratch.write("file", "x");
  fs::create_directory(scratch.path("folder"));
  fs::create_symlink("b", scratch.path("a"));
  fs::create_symlink("a", scratch.path("b"));
  fs::create_symlink("none/target", scratch.path("astray"));
  check_refused(scratch.path("a"), "Too many levels of symbolic links");
  check_refused(scratch.path("a/out"), "Too many levels of symbolic links");
  check_refused(scratch.path("astray"), "No such file or directory");
  check_refused(scratch.path("none/out"), "No such file or directory");
  check_refused(scratch.path("out/"), "No such file or directory");
  check_refused(scratch.path("file/out"), "Not a directory");
  check_refused(scratch.path("file/"), "Not a directory");
  check_refused(scratch.path("folder"), "Is a directory");
  check_refused(scratch.path(std::string(256, 'n')), "File name too long");
  check_refused("", "No such file or directory");
  const std::string long_path(5000, 'n');
  CHECK(refusal_of([&] { OutputFile(long_path, Streams::kAllowed); }).ends_with("n...: cannot write: File name too long"));
  CHECK(scratch.names().size() == 5);

  REQUIRE(::chmod(scratch.folder().c_str(), 0755) == 0);
  REQUIRE(::chmod(scratch.path("folder").c_str(), 0555) == 0);
  const AsNobody nobody;
  if (nobody.is_root())
    MESSAGE("skipped a folder without permission: root may write everywhere");
  else
    check_refused(scratch.path("folder/out"), "Permission denied");
}

TEST_CASE("output file: all files are renamed, or none") {
  for (const bool replaces : {true, false}) {
    CAPTURE(replaces);
    const Scratch scratch;
    const std::string first = scratch.path("first"), second = scratch.path("second");
    if (replaces) scratch.write("first", "old");
    const std::optional<FileIdentity> before = find_identity(first);
    {
      OutputFile a(first, Streams::kRefused), b(second, Streams::kRefused);
      a.write("new a");
      b.write("new b");
      // The last rename fails now.
      fs::create_directory(second);
      CHECK(refusal_of([&] { OutputFile::put_in_place({&a, &b}); }) == second + ": cannot write: Is a directory");
    }
    CHECK(find_identity(first) == before);
    if (replaces) CHECK(Scratch::read(first) == "old");
    CHECK(temporaries(scratch).empty());

    fs::remove(second);
    OutputFile a(first, Streams::kRefused), b(second, Streams::kRefused);
    a.write("new a");
    b.write("new b");
    CHECK(Scratch::read(first) == (replaces ? "old" : ""));
    OutputFile::put_in_place({&a, &b});
    CHECK(Scratch::read(first) == "new a");
    CHECK(Scratch::read(second) == "new b");
    CHECK(scratch.names().size() == 2);
  }
}

TEST_CASE("output file: devices and pipes are written directly, if allowed") {
  const Scratch scratch;
  write_one("/dev/null", "x", Streams::kAllowed);
  CHECK(fs::is_character_file("/dev/null"));
  CHECK(refusal_of([] { OutputFile("/dev/null", Streams::kRefused); }) == "/dev/null: is not a regular file");
  CHECK(refusal_of([] { write_one("/dev/full", "x", Streams::kAllowed); }) ==
        "/dev/full: cannot write: No space left on device");

  const std::string pipe = scratch.path("pipe");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  write_one(pipe, "text", Streams::kAllowed);
  char text[8] = {};
  CHECK(::read(reader, text, sizeof text) == 4);
  CHECK(std::string(text) == "text");
  ::close(reader);
  // Opening it does not wait for a reader.
  CHECK(refusal_of([&] { write_one(pipe, "text", Streams::kAllowed); }) == pipe + ": cannot write: no process reads it");
  CHECK(fs::is_fifo(pipe));
  CHECK(scratch.names().size() == 1);
}

TEST_CASE("output file: one file under two names is detected, existing or not") {
  const Scratch scratch;
  const std::string in = scratch.write("in", "x");
  fs::create_directory(scratch.path("folder"));
  fs::create_symlink("in", scratch.path("link"));
  fs::create_symlink("new", scratch.path("link_to_new"));
  fs::create_symlink("folder", scratch.path("other"));
  fs::create_hard_link(in, scratch.path("hard"));
  const auto refused = [&](const std::string& a, const std::string& b) {
    const OutputFile one(scratch.path(a), Streams::kRefused), two(scratch.path(b), Streams::kRefused);
    const std::string line = refusal_of([&] {
      check_different({{"OUT", a, one.identity()}, {"--report", b, two.identity()}});
    });
    if (!line.empty()) CHECK(line == "--report " + b + " is the same file as OUT " + a + "; use different files");
    return !line.empty();
  };
  for (const std::string name : {"in", "./in", "link", "hard", "folder/../in"}) {
    CAPTURE(name);
    CHECK(refused("in", name));
  }
  CHECK(refused("new", "./new"));
  CHECK(refused("new", "link_to_new"));
  CHECK(refused("folder/new", "other/new"));
  CHECK(!refused("in", "new"));
  CHECK(!refused("new", "newer"));
  CHECK(!refused("new", "folder/new"));
  // A file that does not exist is not equal to any other.
  check_different(
      {{"IN", "none", find_identity(scratch.path("none"))}, {"OUT", "none", find_identity(scratch.path("none"))}});
}
