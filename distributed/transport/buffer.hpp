// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Memory for what arrives from other ranks, kept from step to step (section 6, eq. (8)).
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>

namespace tree_attn {

/// Memory that is written before it is read. It is never cleared, and it is kept for the next request.
///
/// The operating system clears each fresh page when it is first written. For a shard of keys and values this takes longer
/// than the copy that fills it, so memory is kept once it has been written.
class Buffer {
 public:
  /// The first n elements, their values unspecified. Valid until a longer request, which drops what the buffer holds.
  ///
  /// A buffer that is too short grows by at least a half: a cache that gains one key per step would otherwise need fresh
  /// memory at every step. Pages past the n elements are not written, so they take no physical memory.
  /// @tparam T trivial type with an alignment of at most 16
  template <class T>
  std::span<T> first(std::size_t n) {
    if (n * sizeof(T) > capacity_) {
      const std::size_t larger = std::max(n * sizeof(T), capacity_ + capacity_ / 2);
      bytes_.reset();  // before the allocation: never hold both
      capacity_ = 0;
      bytes_ = std::make_unique_for_overwrite<std::byte[]>(larger);
      capacity_ = larger;
    }
    return {reinterpret_cast<T*>(bytes_.get()), n};
  }

  /// Bytes of address space held.
  std::size_t capacity() const { return capacity_; }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::size_t capacity_ = 0;
};

}  // namespace tree_attn
