// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Temporary files, and their renames onto the targets.
#include "tree_attn/reference/data/output_file.hpp"

#include "tree_attn/reference/data/input_error.hpp"
#include "tree_attn/reference/data/temporary_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

namespace tree_attn {
namespace {

namespace fs = std::filesystem;

/// Bytes of a path shown in a message.
constexpr std::size_t kShown = 320;

std::string reason(int error) { return std::generic_category().message(error); }

/// The folder of a path; "." for a bare name.
std::string folder_of(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  return folder.empty() ? "." : folder.string();
}

/// Follows the links of a path whose file does not exist yet, up to the name under which it would be created. On failure
/// returns nothing and sets errno.
std::optional<std::string> end_of_links(std::string path) {
  constexpr int kMostLinks = 40;  // as in the kernel
  for (int i = 0; i < kMostLinks; ++i) {
    std::array<char, PATH_MAX> link;
    const ssize_t length = ::readlink(path.c_str(), link.data(), link.size());
    if (length < 0) {
      // Not a link, or no such file: the end.
      if (errno == EINVAL || errno == ENOENT) return path;
      return std::nullopt;
    }
    const fs::path next(std::string(link.data(), static_cast<std::size_t>(length)));
    path = next.is_absolute() ? next.string() : (fs::path(folder_of(path)) / next).string();
  }
  errno = ELOOP;
  return std::nullopt;
}

/// The path of an existing file with all links resolved. On failure returns nothing and sets errno.
std::optional<std::string> without_links(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> resolved(::realpath(path.c_str(), nullptr), &std::free);
  return resolved ? std::optional<std::string>(resolved.get()) : std::nullopt;
}

/// Exchanges two names atomically. Returns false and sets errno if the file system cannot, or if one does not exist.
bool exchange_names(const std::string& a, const std::string& b) {
  return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
}

/// Writes the entries of a folder to the disk. The renames hold whether it succeeds or not.
void sync_folder(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  (void)::fsync(descriptor);
  ::close(descriptor);
}

}  // namespace

std::optional<FileIdentity> find_identity(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return FileIdentity{status.st_dev, status.st_ino, ""};
}

void check_different(const std::vector<NamedFile>& files) {
  for (std::size_t i = 0; i < files.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (!files[i].identity || files[i].identity != files[j].identity) continue;
      throw InputError(files[i].role + " " + readable(files[i].path, kShown / 3) + " is the same file as " + files[j].role +
                       " " + readable(files[j].path, kShown / 3) + "; use different files");
    }
  }
}

OutputFile::OutputFile(const std::string& path, Streams streams) : path_(path) {
  struct stat status {
  }, standard_output{};
  if (::stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) fail(EISDIR);
    identity_ = {status.st_dev, status.st_ino, ""};
    is_standard_output_ = ::fstat(STDOUT_FILENO, &standard_output) == 0 && standard_output.st_dev == status.st_dev &&
                          standard_output.st_ino == status.st_ino;

    // Renaming would replace a device or pipe by a file, and would unlink the file that standard output writes to.
    if (!S_ISREG(status.st_mode) || is_standard_output_) {
      if (streams == Streams::kRefused) {
        throw InputError(readable(path, kShown) +
                         (S_ISREG(status.st_mode) ? ": is standard output" : ": is not a regular file"));
      }
      is_pipe_ = S_ISFIFO(status.st_mode);
      if (!is_standard_output_ && ::faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) != 0) fail(errno);
      return;
    }
    mode_ = status.st_mode & 0777;
    const std::optional<std::string> target = without_links(path);
    if (!target) fail(errno);
    target_ = *target;
  } else {
    if (errno != ENOENT || path.empty()) fail(errno);
    const std::optional<std::string> target = end_of_links(path);
    if (!target) fail(errno);
    target_ = *target;
    const std::optional<FileIdentity> folder = find_identity(folder_of(target_));
    if (!folder) fail(errno);
    identity_ = {folder->device, folder->inode, fs::path(target_).filename().string()};
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

void OutputFile::fail(int error) const { throw InputError(readable(path_, kShown) + ": cannot write: " + reason(error)); }

void OutputFile::open() {
  if (is_standard_output_) {
    descriptor_ = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
  } else if (target_.empty()) {
    // Without O_NONBLOCK, opening a pipe would wait for a reader. Writes wait for the reader.
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (descriptor_ < 0 && errno == ENXIO && is_pipe_)
      throw InputError(readable(path_, kShown) + ": cannot write: no process reads it");
    if (descriptor_ >= 0 && ::fcntl(descriptor_, F_SETFL, ::fcntl(descriptor_, F_GETFL) & ~O_NONBLOCK) != 0) fail(errno);
  } else {
    // The name is independent of the target's: a long name plus a suffix might exceed the limit.
    static std::atomic<unsigned> counter{0};
    for (int attempt = 0; descriptor_ < 0; ++attempt) {
      const std::string name = ".tree_attn-" + std::to_string(::getpid()) + "-" + std::to_string(counter++) + ".tmp";
      std::string candidate = (fs::path(folder_of(target_)) / name).string();
      descriptor_ = ::open(candidate.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode_.value_or(0666));
      if (descriptor_ >= 0) temporary_ = std::move(candidate);  // cannot fail, so that the file is removed in any case
      // The name exists: left by a killed run, created by another user, or by another machine on a shared disk. Try the
      // next.
      if (descriptor_ < 0 && (errno != EEXIST || attempt == 1000)) fail(errno);
    }
    remember_temporary_file(temporary_);
    if (mode_ && ::fchmod(descriptor_, *mode_) != 0) fail(errno);
  }
  if (descriptor_ < 0) fail(errno);
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
  if (std::exchange(finished_, true)) return;
  if (descriptor_ < 0) open();
  // Before the rename, so that the target is not an empty file after a power failure.
  if (!target_.empty() && ::fsync(descriptor_) != 0) fail(errno);
  // Some network file systems report a full disk only in close().
  if (::close(std::exchange(descriptor_, -1)) != 0) fail(errno);
}

void OutputFile::take_place(bool reversible) {
  if (target_.empty()) return;
  // From now on the temporary name may be that of the replaced file.
  forget_temporary_file(temporary_);
  if (reversible) {
    holds_old_ = exchange_names(temporary_, target_);
    is_new_ = !holds_old_ && errno == ENOENT;
  }
  if (!holds_old_ && ::rename(temporary_.c_str(), target_.c_str()) != 0) fail(errno);
}

void OutputFile::step_back() {
  if (holds_old_) exchange_names(temporary_, target_);
  if (is_new_) ::rename(target_.c_str(), temporary_.c_str());
}

void OutputFile::settle() {
  if (target_.empty()) return;
  if (holds_old_) ::unlink(temporary_.c_str());
  temporary_.clear();
  sync_folder(folder_of(target_));
}

void OutputFile::put_in_place(const std::vector<OutputFile*>& files) {
  for (OutputFile* file : files) file->finish();
  std::size_t n_placed = 0;
  try {
    // The last rename need not be reversible: nothing can fail after it.
    for (; n_placed < files.size(); ++n_placed) files[n_placed]->take_place(n_placed + 1 < files.size());
  } catch (const InputError&) {
    while (n_placed > 0) files[--n_placed]->step_back();
    throw;
  }
  for (OutputFile* file : files) file->settle();
}

void flush_standard_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw InputError("cannot write to standard output");
}

}  // namespace tree_attn
