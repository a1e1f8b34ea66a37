// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Tensor files: reads q, k and v of eq. (7) from a mapped safetensors file, and writes z and lse to one.
///
/// A file consists of a length n (8 bytes, little-endian), a JSON header of n bytes and the data. The header maps each
/// tensor name to its dtype, shape and range of data bytes, and "__metadata__" to a map of strings, which is checked and
/// read on demand. The ranges cover the data exactly once: no overlap, no gap, no bytes after the last. The whole header is
/// checked before any of it is used.
#pragma once

#include "reference/data/input_error.hpp"
#include "reference/data/mapped_file.hpp"
#include "reference/data/output_file.hpp"
#include "reference/state/require.hpp"
#include "reference/tensor/convert.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tree_attn {

/// One tensor of a header.
struct TensorInfo {
  std::string name;                 ///< UTF-8; any character, including U+0000
  std::string dtype;                ///< as spelled in the file: "F32", "I64"
  std::vector<std::int64_t> shape;  ///< lengths of the axes, last axis fastest; empty for a scalar
  std::uint64_t begin = 0;          ///< first byte, relative to the start of the data
  std::uint64_t end = 0;            ///< one past the last byte
};

/// Bits per element of a safetensors dtype; 0 for an unknown dtype (names are case-sensitive: "f32" is unknown).
int bits_of_dtype(std::string_view dtype);

/// A safetensors file, mapped read-only. Pages are read on first access, so a rank needs memory for its own shard only.
///
/// Limits beyond those of the format: header at most 100,000,000 bytes; axes shorter than 2^48; at most 64 axes; less than
/// 2^60 bytes per tensor, where axes of length 0 do not count; no unknown fields. If another process replaces the file (as
/// SafetensorsWriter does), this object keeps the old one. If the file is truncated, the process ends; see
/// end_on_cut_file().
class SafetensorsFile {
 public:
  /// Maps a file and checks its whole header. Memory: at most a few times the size of the header, independent of the data.
  /// @throws InputError if it cannot be read or is not a valid file: "PATH: tensor "w": unknown dtype "F33""
  static SafetensorsFile open(const std::string& path);

  const std::string& path() const { return path_; }
  /// All tensors, in the order of their data.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// The tensor with this name, or nullptr.
  const TensorInfo* find(std::string_view name) const;
  /// The tensor with this name.
  /// @throws InputError if there is none: "PATH: tensor "k" not found; file has: q, v"
  const TensorInfo& at(std::string_view name) const;
  /// First byte of a tensor of this file. It may be unaligned: copy from it (load(), std::memcpy), do not cast it.
  /// @throws std::out_of_range if the file has no such bytes
  const std::byte* data(const TensorInfo& tensor) const {
    const std::size_t n_bytes = file_.bytes().size() - data_begin_;
    require<std::out_of_range>(tensor.begin <= tensor.end && tensor.end <= n_bytes, "SafetensorsFile::data: bytes [",
                               tensor.begin, ", ", tensor.end, ") of ", n_bytes);
    return file_.bytes().data() + data_begin_ + tensor.begin;
  }
  /// The entry of "__metadata__" with this key; empty if there is none. Parses the header again.
  std::optional<std::string> metadata(std::string_view key) const;
  /// FNV-1a (64 bits) of the length word, the header and the file size. Ranks with different hashes see different files.
  std::uint64_t header_hash() const { return header_hash_; }
  /// Removes all pages from the resident memory of this process. They stay in the page cache and are mapped again on access;
  /// one access may map a whole folio of the cache, 2 MiB.
  void release_pages() const { file_.release_pages(); }

 private:
  explicit SafetensorsFile(const std::string& path) : path_(path), file_(path) {}

  std::string path_;
  MappedFile file_;
  std::uint64_t data_begin_ = 0;
  std::uint64_t header_hash_ = 0;
  std::vector<TensorInfo> tensors_;   // sorted by range
  std::vector<std::size_t> by_name_;  // indices into tensors_, sorted by name
};

/// A view of a tensor with four axes and dtype F64, F32, F16, BF16 or F8_E4M3. Nothing is copied; the file must outlive the
/// view.
/// @param axes names of the four axes, for the message: "b, n_h, l, d_h"
/// @throws InputError if the tensor is missing, or has another dtype or number of axes:
///   tensor "k": dtype I64 not supported (F64, F32, F16, BF16, F8_E4M3); tensor "q": 1 axis, expected 4 (b, n_h, l, d_h)
TensorView view4(const SafetensorsFile& file, std::string_view name, std::string_view axes);

/// Collects tensors and writes them to a file atomically: the target is either complete or unchanged.
class SafetensorsWriter {
 public:
  /// Adds a dense tensor, last axis fastest. The bytes are not copied: they must remain valid until write().
  /// @param dtype a dtype of the format: "F32", "I64"
  /// @param bytes as many as dtype and shape require; any alignment; none for an empty tensor
  /// @throws std::invalid_argument if the name is taken, reserved or not UTF-8, or dtype, shape and bytes are inconsistent
  void add(std::string_view name, std::string_view dtype, std::span<const std::int64_t> shape,
           std::span<const std::byte> bytes);

  /// Writes all tensors, the widest dtypes first so that all data is aligned. Equal tensors give equal bytes.
  /// @throws InputError with the system's reason: "PATH: cannot write: No space left on device"
  void write(OutputFile& file) const;
  /// Writes to a new file, or replaces a regular one; see OutputFile.
  /// @throws InputError
  void write(const std::string& path) const;

 private:
  struct Entry {
    TensorInfo info;
    std::span<const std::byte> bytes;
  };

  std::vector<Entry> entries_;
};

}  // namespace tree_attn
