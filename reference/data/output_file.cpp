// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Temporary files, and their renames onto the targets.
#include "tree_attn/reference/data/output_file.hpp"

#include "tree_attn/reference/data/input_error.hpp"
#include "tree_attn/reference/data/temporary_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

namespace tree_attn {
namespace {

namespace fs = std::filesystem;

/// Bytes of a path shown in a message.
constexpr std::size_t kShown = 320;

/// The folder of a path; "." for a bare name.
fs::path folder_of(const std::string& path) {
  fs::path folder = fs::path(path).parent_path();
  return folder.empty() ? "." : folder;
}

/// Whether two paths name one file, which may be one that does not exist yet.
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
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (temporary_.empty()) return;
  ::unlink(temporary_.c_str());
  forget_temporary_file(temporary_);
}

void OutputFile::fail(int error) const {
  throw InputError(readable(path_, kShown) + ": cannot write: " + std::generic_category().message(error));
}

void OutputFile::open() {
  // The name is independent of the target's: a long name plus a suffix might exceed the limit.
  static std::atomic<unsigned> counter{0};
  for (int attempt = 0; descriptor_ < 0; ++attempt) {
    const std::string name = ".tree_attn-" + std::to_string(::getpid()) + "-" + std::to_string(counter++) + ".tmp";
    std::string candidate = (folder_of(target_) / name).string();
    descriptor_ = ::open(candidate.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode_.value_or(0666));
    if (descriptor_ >= 0) temporary_ = std::move(candidate);  // cannot fail, so that the file is removed in any case
    // The name exists: left by a killed run, created by another user, or by another machine on a shared disk. Try the next.
    if (descriptor_ < 0 && (errno != EEXIST || attempt == 1000)) fail(errno);
  }
  remember_temporary_file(temporary_);
  if (mode_ && ::fchmod(descriptor_, *mode_) != 0) fail(errno);
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

void OutputFile::put_in_place(std::span<OutputFile* const> files) {
  for (OutputFile* const file : files) file->finish();
  std::size_t n = 0;
  try {
    for (; n < files.size(); ++n) files[n]->replace(n + 1 < files.size());
  } catch (...) {
    while (n-- > 0) files[n]->put_back();
    throw;
  }
  for (OutputFile* const file : files)
    if (!file->old_.empty()) ::unlink(file->old_.c_str());
}

/// @param keeps_old under another name, for put_back()
void OutputFile::replace(bool keeps_old) {
  if (keeps_old && mode_) {
    old_ = temporary_ + ".old";
    // Where there are no hard links, the target is absent until the next rename.
    if (::link(target_.c_str(), old_.c_str()) != 0 && ::rename(target_.c_str(), old_.c_str()) != 0) fail(errno);
  }
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
    const int error = errno;
    if (!old_.empty()) put_back();
    fail(error);
  }
  forget_temporary_file(temporary_);
  temporary_.clear();
}

void OutputFile::put_back() {
  if (old_.empty())
    ::unlink(target_.c_str());
  else if (::rename(old_.c_str(), target_.c_str()) == 0)
    ::unlink(old_.c_str());  // of two links to one file a rename removes neither
}

void flush_standard_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw InputError("cannot write to standard output");
}

}  // namespace tree_attn
