// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Output files: regular files, each complete before it replaces its target.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tree_attn {

/// A regular file to write, from the check of its path to the rename onto its target.
///
/// The bytes go to a temporary file beside the target, `TARGET.XXXXXX` of mkstemp(). It is opened exclusively, so a file or
/// link of that name created by another user is neither followed nor overwritten. Readers never see a partial file, and a
/// process that has mapped the old file keeps it. A replaced file keeps its access mode, but not its owner, access control
/// list or hard links. A process that a signal or _exit() ends may leave its temporary file.
class OutputFile {
 public:
  /// Follows links to a file that exists, and checks that a file can be created there. Writes nothing.
  /// @throws InputError "PATH: cannot write: Not a directory", "PATH: is not a regular file"
  explicit OutputFile(const std::string& path);
  /// Removes what has not been put in place.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Appends. @throws InputError with the system's reason: "PATH: cannot write: No space left on device"
  void write(std::span<const std::byte> bytes);
  void write(const std::string& text) { write(std::as_bytes(std::span(text))); }

  /// Flushes all bytes to the disk; after this only the rename can fail. @throws InputError
  void finish();
  /// Finishes the file, and renames it to its target. @throws InputError
  void put_in_place();

 private:
  [[noreturn]] void fail(int error) const;
  void open();

  std::string path_;            // as given, for messages
  std::string target_;          // links resolved
  std::string temporary_;       // empty if there is none
  std::optional<mode_t> mode_;  // of the replaced file
  int descriptor_ = -1;
};

/// A file of the command line: its role ("IN", "OUT" or "--report") and its path.
struct NamedFile {
  std::string role, path;
};

/// Refuses two paths to one file, also through links, hard links and other folders: writing one would destroy the other.
/// @throws InputError "--report b is the same file as OUT a; use different files"
void check_different(const std::vector<NamedFile>& files);

/// Flushes standard output. @throws InputError "cannot write to standard output"
void flush_standard_output();

}  // namespace tree_attn
