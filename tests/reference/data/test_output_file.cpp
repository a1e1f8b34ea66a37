// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Output files: links, replaced files, and bytes that are on the disk.
#include "reference/data/output_file.hpp"
#include "tests/support/tensor_files.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace {

using namespace tree_attn;
namespace fs = std::filesystem;

mode_t mode_of(const std::string& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return status.st_mode & 07777;
}

void write_one(const std::string& path, const std::string& text) {
  OutputFile file(path);
  file.write(text);
  file.put_in_place();
}

/// Temporary files beside a target.
std::vector<std::string> temporaries(const Scratch& scratch, const std::string& target) {
  std::vector<std::string> found;
  for (const std::string& name : scratch.names()) {
    if (name.size() == target.size() + 7 && name.starts_with(target + ".")) found.push_back(name);
  }
  return found;
}

std::string awaited;
std::vector<bool> is_there;  ///< whether the awaited file is, in every call of fsync()

}  // namespace

/// In place of that of the C library, in this program.
extern "C" int fsync(int descriptor) {
  if (!awaited.empty()) is_there.push_back(std::filesystem::exists(awaited));
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}

TEST_CASE("output file: a replaced file keeps its mode, a new one has that of the umask") {
  const Scratch scratch;
  const std::string path = scratch.write("private", "old");
  const mode_t before = ::umask(0027);
  for (const mode_t mode : {0600, 0640, 0755, 0444, 0666}) {
    CAPTURE(mode);
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    OutputFile file(path);
    file.write("new");
    // Other users cannot read it while it is being written either.
    CHECK(mode_of(scratch.path(temporaries(scratch, "private").at(0))) == mode);
    file.put_in_place();
    CHECK(mode_of(path) == mode);
  }
  write_one(scratch.path("new"), "new");
  ::umask(before);
  CHECK(mode_of(scratch.path("new")) == 0640);
}

TEST_CASE("output file: links to a file are followed") {
  const Scratch scratch;
  fs::create_directory(scratch.path("folder"));
  scratch.write("folder/target", "old");
  fs::create_symlink("folder/target", scratch.path("relative"));
  fs::create_symlink(scratch.path("relative"), scratch.path("chain"));
  write_one(scratch.path("chain"), "first");
  CHECK(fs::is_symlink(scratch.path("chain")));
  CHECK(fs::is_symlink(scratch.path("relative")));
  CHECK(Scratch::read(scratch.path("folder/target")) == "first");
}

TEST_CASE("output file: an invalid path is refused in one line with the reason") {
  const Scratch scratch;
  const auto check_refused = [&](const std::string& path, const std::string& reason) {
    CHECK(test::message<InputError>([&] { OutputFile{path}; }) == path + ": cannot write: " + reason);
  };
  scratch.write("file", "x");
  fs::create_directory(scratch.path("folder"));
  fs::create_symlink("b", scratch.path("a"));
  fs::create_symlink("a", scratch.path("b"));
  fs::create_symlink("target", scratch.path("astray"));
  check_refused(scratch.path("a"), "Too many levels of symbolic links");
  check_refused(scratch.path("astray"), "No such file or directory");
  check_refused(scratch.path("none/out"), "No such file or directory");
  check_refused(scratch.path("file/out"), "Not a directory");
  check_refused(scratch.path("folder"), "Is a directory");
  check_refused(scratch.path(std::string(249, 'n')), "File name too long");  // its temporary file has 256 letters
  check_refused("", "No such file or directory");
  const std::string long_path(5000, 'n');
  CHECK(test::message<InputError>([&] { OutputFile{long_path}; }).ends_with("n...: cannot write: File name too long"));
  CHECK(scratch.names().size() == 5);

  REQUIRE(::chmod(scratch.folder().c_str(), 0755) == 0);
  REQUIRE(::chmod(scratch.path("folder").c_str(), 0555) == 0);
  const AsNobody nobody;
  if (nobody.is_root())
    MESSAGE("skipped a folder without permission: root may write everywhere");
  else
    check_refused(scratch.path("folder/out"), "Permission denied");
}

TEST_CASE("output file: a target holds all of the new bytes, or is as it was") {
  const Scratch scratch;
  const std::string path = scratch.write("out", "old");
  {
    OutputFile file(path);
    file.write("half");
  }
  CHECK(Scratch::read(path) == "old");
  CHECK(scratch.names().size() == 1);
  {
    OutputFile file(path);
    file.write("new ");
    file.write("text");
    file.finish();
    CHECK(Scratch::read(path) == "old");
    file.put_in_place();
    CHECK(Scratch::read(path) == "new text");
  }
  CHECK(scratch.names().size() == 1);
}

TEST_CASE("output file: it is on the disk before it has its name, so that a power failure leaves no empty file") {
  const Scratch scratch;
  awaited = scratch.path("out");
  write_one(awaited, "x");
  awaited.clear();
  CHECK(is_there == std::vector{false});
}

TEST_CASE("output file: where the rename fails, nothing is left beside the target") {
  const Scratch scratch;
  const std::string path = scratch.path("out");
  {
    OutputFile file(path);
    file.write("x");
    CHECK(temporaries(scratch, "out").size() == 1);
    fs::create_directory(path);
    CHECK(test::message<InputError>([&] { file.put_in_place(); }) == path + ": cannot write: Is a directory");
  }
  CHECK(scratch.names().size() == 1);
}

TEST_CASE("output file: a device, a pipe and standard output are refused, and stay what they are") {
  const Scratch scratch;
  const std::string pipe = scratch.path("pipe"), table = scratch.write("table", "");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  for (const std::string& path : {std::string("/dev/null"), pipe})
    CHECK(test::message<InputError>([&] { OutputFile{path}; }) == path + ": is not a regular file");
  const int before = ::dup(STDOUT_FILENO), to_table = ::open(table.c_str(), O_WRONLY | O_CLOEXEC);
  ::dup2(to_table, STDOUT_FILENO);
  const std::string line = test::message<InputError>([&] { OutputFile{table}; });
  ::dup2(before, STDOUT_FILENO);
  ::close(before), ::close(to_table);
  CHECK(line == table + ": is standard output");
}

TEST_CASE("output file: a file that does not exist yet is one file under all of its names") {
  const Scratch scratch;
  fs::create_directory(scratch.path("folder"));
  fs::create_symlink("folder", scratch.path("other"));
  const auto refused = [&](const std::string& a, const std::string& b) {
    const std::string one = scratch.path(a), two = scratch.path(b);
    const std::string line = test::message<InputError>([&] { check_different({{"OUT", one}, {"--report", two}}); });
    if (!line.empty()) CHECK(line == "--report " + two + " is the same file as OUT " + one + "; use different files");
    return !line.empty();
  };
  CHECK(refused("new", "./new"));
  CHECK(refused("folder/new", "other/new"));
  CHECK(!refused("folder", "new"));
  CHECK(!refused("new", "newer"));
  CHECK(!refused("new", "folder/new"));
  // From the current folder, and from the root.
  const fs::path before = fs::current_path();
  fs::current_path(scratch.folder());
  const std::string line = test::message<InputError>([&] {
    check_different({{"OUT", "new"}, {"--report", scratch.path("new")}});
  });
  fs::current_path(before);
  CHECK(line.starts_with("--report " + scratch.path("new") + " is the same file as OUT new"));
}
