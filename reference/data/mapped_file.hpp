// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A file mapped read-only, and the end of the program if another process cuts it short meanwhile.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace tree_attn {

/// A regular file, mapped: pages are read when they are touched. The mapping outlives a rename or removal of the file.
///
/// A page past the end of a file that was cut short cannot be read; touching it raises SIGBUS, see end_on_cut_file().
class MappedFile {
 public:
  /// Maps a whole file. @throws InputError "PATH: cannot open: Permission denied", "PATH: is a directory"
  explicit MappedFile(const std::string& path);

  /// The file, of the length that it had when it was opened; empty for an empty file.
  std::span<const std::byte> bytes() const { return {bytes_.get(), bytes_.get_deleter().size}; }
  /// Gives up the pages that were read; one that is touched again is read again.
  void release_pages() const;

 private:
  struct Unmap {
    std::size_t size;  // of the mapping
    void operator()(const std::byte* bytes) const;
  };
  std::unique_ptr<const std::byte[], Unmap> bytes_{nullptr, {0}};
};

/// From here on, touching a page that a mapped file no longer has ends the process with status 2 and one line that names the
/// file, instead of SIGBUS. Any other SIGBUS does what it did before.
/// @param claim safe in a signal handler; true for the first caller of all ranks, which alone writes the line. The others
///   wait for its end to end them, at most 5 s.
void end_on_cut_file(bool (*claim)(const void*), const void* context);

}  // namespace tree_attn
