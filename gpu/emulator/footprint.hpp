// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The bytes that one operation of a stream reads and writes through functions of device.hpp and copies of
/// launch.hpp.
///
/// Two operations that nothing orders race if their footprints meet, whatever order the emulator ran them in. Plain loads
/// and stores of a kernel leave no footprint; a race between two of those is not found here.
#pragma once

#include "gpu/emulator/coordinates.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tree_attn::emulated::runtime {

/// Kind of an access: a read of memory that no kernel writes, a read, a write, or both at once.
enum class Reach { kReadOnly, kRead, kWrite, kAtomic };

/// Accesses of an operation to the bytes of one buffer, with one bit for every two bytes.
class Touched {
 public:
  explicit Touched(std::size_t n_bytes) : n_words_((n_bytes + 127) / 128) {}

  /// @param at offset of the first byte in the buffer
  void note(std::size_t at, std::size_t n_bytes, Reach reach, const char* word, const Line& line);
  /// Describes the conflict of two operations that nothing orders: "writes bytes 0 to 8 (...) that ... reads (...)"; empty
  /// if they do not.
  /// @param other_name of the operation that touched `other`
  std::string conflict(const Touched& other, const std::string& other_name) const;

 private:
  enum Kind { kReads, kWrites, kAtomics, kKinds };
  struct Bits {
    std::vector<std::uint64_t> of;  ///< none before the first access
    std::string where;              ///< the first access of this kind: the function and the line of its call
  };

  std::size_t n_words_;
  Bits bits_[kKinds];
};

/// The buffers that an operation has touched.
class Footprint {
 public:
  Touched& of(std::uintptr_t buffer, std::size_t n_bytes);
  /// The buffer is freed; another may lie at its address.
  void forget(std::uintptr_t buffer);
  /// See Touched::conflict().
  std::string conflict(const Footprint& other, const std::string& other_name) const;

 private:
  std::map<std::uintptr_t, Touched> buffers_;
};

}  // namespace tree_attn::emulated::runtime
