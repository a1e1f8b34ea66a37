// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Tensor files, in and out: q, k and v of eq. (7) as a mapped safetensors file, z and lse as a written one.
///
/// A file is a length n (8 bytes, little-endian), a JSON header of n bytes and the data. The header maps the name of a
/// tensor to its dtype, shape and range of data bytes, and "__metadata__" to a map of strings, which is checked but not
/// kept. The ranges cover the data once: no overlap, no hole, nothing behind the last. All of that is checked before
/// anything is used.
#pragma once

#include "reference/data/input_error.hpp"
#include "reference/data/mapped_file.hpp"
#include "reference/data/output_file.hpp"
#include "reference/tensor/convert.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tree_attn {

/// What the header of a file says about one tensor.
struct TensorInfo {
  std::string name;                 ///< UTF-8, may hold any character, also U+0000
  std::string dtype;                ///< as the file spells it: "F32", "I64"
  std::vector<std::int64_t> shape;  ///< lengths of the axes, last axis fastest; empty for a scalar
  std::uint64_t begin = 0;          ///< first byte, counted from the start of the data
  std::uint64_t end = 0;            ///< one behind the last byte
};

/// Bits of one number of a safetensors dtype; 0 where there is no such dtype (the spelling counts: "f32" is none).
int bits_of_dtype(std::string_view dtype);

/// A safetensors file, mapped read-only: pages are read when they are touched, so a rank costs no more memory than its
/// shard.
///
/// Limits beyond those of the format: header at most 100,000,000 bytes; lengths of axes below 2^48; at most 64 axes; a
/// tensor below 2^60 bytes even where an axis of length 0 is left out of the product; no fields that nobody knows. A file
/// that another process replaces (as SafetensorsWriter does) stays as it was; one that is cut short ends this process, see
/// end_on_cut_file().
class SafetensorsFile {
 public:
  /// Maps a file and checks all of its header. Memory: at most a few times the size of the header, never that of the data.
  /// @throws InputError if it cannot be read or is not a valid file: "PATH: tensor "w": unknown dtype "F33""
  static SafetensorsFile open(const std::string& path);

  const std::string& path() const { return path_; }
  /// All tensors, in the order of their data.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// The tensor of that name, compared at full length, or nullptr.
  const TensorInfo* find(std::string_view name) const;
  /// The tensor of that name.
  /// @throws InputError if there is none: "PATH: tensor "k" not found; file has: q, v"
  const TensorInfo& at(std::string_view name) const;
  /// First byte of a tensor of this file. At any alignment: copy from it (load(), std::memcpy), never cast it.
  const std::byte* data(const TensorInfo& tensor) const { return file_.bytes().data() + data_begin_ + tensor.begin; }
  /// FNV-1a (64 bits) of the length word, the header and the size of the file: ranks that differ in it see different files.
  std::uint64_t header_hash() const { return header_hash_; }
  /// Takes all pages out of this process's resident memory. They stay in the page cache, and come back when they are read: a
  /// page that is read may bring a whole folio of the cache, 2 MiB, into the process.
  void release_pages() const { file_.release_pages(); }

 private:
  explicit SafetensorsFile(const std::string& path) : path_(path), file_(path) {}

  std::string path_;
  MappedFile file_;
  std::uint64_t data_begin_ = 0;
  std::uint64_t header_hash_ = 0;
  std::vector<TensorInfo> tensors_;   // by range
  std::vector<std::size_t> by_name_;  // places in tensors_, sorted by name
};

/// A view of a tensor of four axes of F64, F32, F16 or BF16 numbers. Nothing is copied; the file must outlive the view.
/// @param axes names of the four axes, for the message: "b, n_h, l, d_h"
/// @throws InputError if there is no such tensor, or its dtype or number of axes differs:
///   tensor "k": dtype I64 not supported (F16, BF16, F32, F64); tensor "q": 1 axis, expected 4 (b, n_h, l, d_h)
TensorView view4(const SafetensorsFile& file, std::string_view name, std::string_view axes);

/// Collects tensors and writes them to a file in one go: the file is there complete, or not at all.
class SafetensorsWriter {
 public:
  /// Takes a dense tensor, last axis fastest. The bytes are not copied: they must stay until write().
  /// @param dtype a dtype of the format: "F32", "I64"
  /// @param bytes as many as dtype and shape take; at any alignment; none for an empty tensor
  /// @throws std::invalid_argument if the name is taken, reserved or not UTF-8, or dtype, shape and bytes do not fit
  void add(std::string_view name, std::string_view dtype, std::span<const std::int64_t> shape,
           std::span<const std::byte> bytes);

  /// Writes all of them. Wide dtypes come first, so that all data is aligned. The same tensors give the same bytes.
  /// @throws InputError with the reason of the system: "PATH: cannot write: No space left on device"
  void write(OutputFile& file) const;
  /// The same, to a new file or in the place of a regular one: see OutputFile.
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
