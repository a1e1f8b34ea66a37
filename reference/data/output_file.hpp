// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Files that are written: each is complete before it takes its place, and several take their places together.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tree_attn {

/// One file, however it is named: device and inode. For a file that does not exist yet: those of its folder, and its name.
struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;
  std::string name;  ///< empty if the file exists
  bool operator==(const FileIdentity&) const = default;
};

/// What besides a file a path may lead to.
enum class Streams {
  kRefused,
  kAllowed  ///< a device, a pipe, the standard output of this program: written as it is, never renamed
};

/// A file to write, from the check of its path to the rename that puts it in its place.
///
/// The bytes go to a temporary file `.tree_attn-PID-N.tmp` in the folder of the target. It is opened exclusively, so a file
/// or link of that name that another user planted is neither followed nor overwritten. No reader sees a part of the file,
/// and a process that has mapped the old one keeps it. Links are followed, also to a target that does not exist yet. The
/// file keeps the access mode of the file that it replaces, but not its owner, access control list or hard links. A process
/// that is killed leaves the temporary file behind.
class OutputFile {
 public:
  /// Checks where the path leads and that a file can be made there; writes nothing.
  /// @throws InputError "PATH: cannot write: Not a directory", "PATH: is not a regular file"
  OutputFile(const std::string& path, Streams streams);
  /// Removes the temporary file, unless put_in_place() succeeded.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const FileIdentity& identity() const { return identity_; }

  /// Appends. @throws InputError with the reason of the system: "PATH: cannot write: No space left on device"
  void write(std::span<const std::byte> bytes);
  void write(const std::string& text) { write(std::as_bytes(std::span(text))); }

  /// Makes sure that all bytes are on the disk: behind this, only the rename can fail. @throws InputError
  void finish();

  /// Finishes files and renames them to their targets, all of them or none: if a rename fails, those before it are undone.
  ///
  /// Undoing takes a file system that can exchange two names (Linux: ext4, XFS, Btrfs, tmpfs); elsewhere a file that was
  /// already replaced stays replaced.
  /// @throws InputError
  static void put_in_place(const std::vector<OutputFile*>& files);

 private:
  [[noreturn]] void fail(int error) const;
  void open();
  void take_place(bool reversible);
  void step_back();
  void settle();

  std::string path_;       // as given, for messages
  std::string target_;     // without links; empty for a stream
  std::string temporary_;  // empty: none
  FileIdentity identity_;
  std::optional<mode_t> mode_;  // of the file that is replaced
  bool is_standard_output_ = false;
  bool finished_ = false;
  bool holds_old_ = false;  // in place, and the temporary name holds the file that was replaced
  bool is_new_ = false;     // in place, where no file was before
  int descriptor_ = -1;
};

/// A file of the command line: "IN", "OUT" or "--report", its path, and what that leads to.
struct NamedFile {
  std::string role, path;
  std::optional<FileIdentity> identity;  ///< nothing for a file that is not there
};

/// Refuses two names of one file, also by links, hard links and other folders: writing one would destroy the other.
/// @throws InputError "--report b is the same file as OUT a; give each a file of its own"
void check_different(const std::vector<NamedFile>& files);

/// The identity of an existing file, links followed; nothing if there is none.
std::optional<FileIdentity> find_identity(const std::string& path);

/// Hands over everything that was printed. @throws InputError "cannot write to standard output"
void flush_standard_output();

}  // namespace tree_attn
