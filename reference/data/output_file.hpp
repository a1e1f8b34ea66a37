// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Output files: each is complete before it replaces its target, and several replace their targets together.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tree_attn {

/// Identifies a file independently of its path: device and inode. For a file that does not exist yet: those of its folder,
/// and its name.
struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;
  std::string name;  ///< empty if the file exists
  bool operator==(const FileIdentity&) const = default;
};

/// Whether a path may name a stream instead of a file.
enum class Streams {
  kRefused,
  kAllowed  ///< a device, a pipe or the standard output of this program: written directly, never renamed
};

/// A file to write, from the check of its path to the rename onto its target.
///
/// The bytes go to a temporary file `.tree_attn-PID-N.tmp` in the folder of the target. It is opened exclusively, so a file
/// or link of that name created by another user is neither followed nor overwritten. Readers never see a partial file, and a
/// process that has mapped the old file keeps it. Links are followed, also to a target that does not exist yet. A replaced
/// file keeps its access mode, but not its owner, access control list or hard links. A process that SIGKILL ends leaves its
/// temporary file; for other ends without destructors see remove_temporary_files().
class OutputFile {
 public:
  /// Resolves the path and checks that a file can be created there. Writes nothing.
  /// @throws InputError "PATH: cannot write: Not a directory", "PATH: is not a regular file"
  OutputFile(const std::string& path, Streams streams);
  /// Removes the temporary file, unless put_in_place() succeeded.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const FileIdentity& identity() const { return identity_; }

  /// Appends. @throws InputError with the system's reason: "PATH: cannot write: No space left on device"; for a pipe
  /// "PATH: cannot write: no process reads it"
  void write(std::span<const std::byte> bytes);
  void write(const std::string& text) { write(std::as_bytes(std::span(text))); }

  /// Flushes all bytes to the disk; after this only the rename can fail. @throws InputError
  void finish();

  /// Finishes the files and renames them to their targets, all or none: if a rename fails, the earlier ones are undone.
  ///
  /// Undoing requires a file system that can exchange two names (Linux: ext4, XFS, Btrfs, tmpfs). Elsewhere a file that was
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
  std::string target_;     // links resolved; empty for a stream
  std::string temporary_;  // empty if there is none
  FileIdentity identity_;
  std::optional<mode_t> mode_;  // of the replaced file
  bool is_standard_output_ = false;
  bool is_pipe_ = false;
  bool finished_ = false;
  bool holds_old_ = false;  // renamed, and the temporary name holds the replaced file
  bool is_new_ = false;     // renamed, and the target did not exist before
  int descriptor_ = -1;
};

/// A file of the command line: its role ("IN", "OUT" or "--report"), its path and its identity.
struct NamedFile {
  std::string role, path;
  std::optional<FileIdentity> identity;  ///< empty if the file does not exist
};

/// Refuses two paths to one file, also through links, hard links and other folders: writing one would destroy the other.
/// @throws InputError "--report b is the same file as OUT a; use different files"
void check_different(const std::vector<NamedFile>& files);

/// The identity of an existing file, following links; empty if there is none.
std::optional<FileIdentity> find_identity(const std::string& path);

/// Flushes standard output. @throws InputError "cannot write to standard output"
void flush_standard_output();

}  // namespace tree_attn
