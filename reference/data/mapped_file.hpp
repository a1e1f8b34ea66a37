// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A file mapped read-only.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace tree_attn {

/// A mapped regular file. Pages are read on first access. The mapping survives renaming or removing the file.
///
/// If another process truncates the file, accessing a page past its new end ends this process by SIGBUS.
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

}  // namespace tree_attn
