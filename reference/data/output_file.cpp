// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Temporary files, and the rename of one onto its target.
#include "reference/data/output_file.hpp"

#include "reference/data/input_error.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

namespace tree_attn {
namespace {

namespace fs = std::filesystem;

/// Bytes of a path shown in a message.
constexpr std::size_t kShown = 320;
/// Follows the name of the target in that of its temporary file; mkstemp() replaces the letters.
constexpr const char* kSuffix = ".XXXXXX";

/// The folder of a path; "." for a bare name.
fs::path folder_of(const std::string& path) {
  fs::path folder = fs::path(path).parent_path();
  return folder.empty() ? "." : folder;
}

/// Tests whether two paths name one file, possibly one that does not exist yet.
bool is_same_file(const fs::path& a, const fs::path& b) {
  std::error_code error;
  if (fs::exists(a, error) || fs::exists(b, error)) return fs::equivalent(a, b, error);
  return fs::weakly_canonical(fs::absolute(a)) == fs::weakly_canonical(fs::absolute(b));
}

}  // namespace

void check_different(const std::vector<NamedFile>& files) {
  for (std::size_t i = 0; i < files.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (!is_same_file(files[i].path, files[j].path)) continue;
      throw InputError(files[i].role + " " + readable(files[i].path, kShown / 3) + " is the same file as " + files[j].role +
                       " " + readable(files[j].path, kShown / 3) + "; use different files");
    }
  }
}

OutputFile::OutputFile(const std::string& path) : path_(path), target_(path) {
  struct stat status {
  }, standard_output{};
  if (::stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) fail(EISDIR);
    if (!S_ISREG(status.st_mode)) throw InputError(readable(path, kShown) + ": is not a regular file");
    // A rename would unlink the file that the table goes to.
    if (::fstat(STDOUT_FILENO, &standard_output) == 0 && standard_output.st_dev == status.st_dev &&
        standard_output.st_ino == status.st_ino)
      throw InputError(readable(path, kShown) + ": is standard output");
    mode_ = status.st_mode & 0777;
    std::error_code error;
    target_ = fs::canonical(path, error).string();
    if (error) fail(error.value());
  } else {
    if (errno != ENOENT) fail(errno);
    // A rename would replace a link to a file that does not exist.
    if (path.empty() || ::lstat(path.c_str(), &status) == 0) fail(ENOENT);
  }
  // A rename needs write permission on the folder, not on the file.
  if (::faccessat(AT_FDCWD, folder_of(target_).c_str(), W_OK | X_OK, AT_EACCESS) != 0) fail(errno);
  // The name of the temporary file is longer.
  if (::lstat((target_ + kSuffix).c_str(), &status) != 0 && errno != ENOENT) fail(errno);
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::fail(int error) const {
  throw InputError(readable(path_, kShown) + ": cannot write: " + std::generic_category().message(error));
}

void OutputFile::open() {
  std::string name = target_ + kSuffix;
  descriptor_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (descriptor_ < 0) fail(errno);
  temporary_ = std::move(name);
  // mkstemp lets the owner alone read and write. There is no call that reads the mask and leaves it.
  const mode_t mask = ::umask(077);
  ::umask(mask);
  if (::fchmod(descriptor_, mode_.value_or(0666 & ~mask)) != 0) fail(errno);
}

void OutputFile::write(std::span<const std::byte> bytes) {
  if (descriptor_ < 0) open();
  // One call writes at most 2 GiB, and may write less.
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void OutputFile::finish() {
  if (temporary_.empty()) open();
  if (descriptor_ < 0) return;
  // Before the rename, so that the target is not an empty file after a power failure.
  if (::fsync(descriptor_) != 0) fail(errno);
  // Some network file systems report a full disk only in close().
  if (::close(std::exchange(descriptor_, -1)) != 0) fail(errno);
}

void OutputFile::put_in_place() {
  finish();
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail(errno);
  temporary_.clear();
}

void flush_standard_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw InputError("cannot write to standard output");
}

}  // namespace tree_attn
