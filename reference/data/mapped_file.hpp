// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A file mapped read-only, and a clean exit if another process truncates it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace tree_attn {

/// A mapped regular file. Pages are read on first access. The mapping survives renaming or removing the file.
///
/// If the file is truncated, accessing a page past its new end raises SIGBUS; see end_on_cut_file().
class MappedFile {
 public:
  /// Maps a whole file. @throws InputError "PATH: cannot open: Permission denied", "PATH: is a directory"
  explicit MappedFile(const std::string& path);

  /// The bytes of the file, with its size when it was opened; empty for an empty file.
  std::span<const std::byte> bytes() const { return {bytes_.get(), bytes_.get_deleter().size}; }
  /// Releases the resident pages; a later access reads them again.
  void release_pages() const;

 private:
  struct Unmap {
    std::size_t size;  // of the mapping
    void operator()(const std::byte* bytes) const;
  };
  std::unique_ptr<const std::byte[], Unmap> bytes_{nullptr, {0}};
};

/// Installs a SIGBUS handler: accessing a page that a mapped file no longer has ends the process with status 2 and one line
/// that names the file, and removes the temporary files. Any other SIGBUS is handled as before.
/// @param claim must be async-signal-safe; returns true to the first caller of all ranks, which alone writes the line. The
///   others wait until its exit ends them, at most 5 s.
void end_on_cut_file(bool (*claim)(const void*), const void* context);

}  // namespace tree_attn
