// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Memory for received keys and values, kept from step to step (section 6, eq. (8)).
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>

namespace tree_attn {

/// Uninitialized memory, with an alignment of at least 16.
using Memory = std::unique_ptr<std::byte[], void (*)(std::byte*)>;
/// Allocates a number of bytes. @throws std::bad_alloc
using Allocate = Memory (*)(std::size_t n_bytes);
inline Memory allocate_on_heap(std::size_t n_bytes) {
  return {std::make_unique_for_overwrite<std::byte[]>(n_bytes).release(), [](std::byte* bytes) { delete[] bytes; }};
}

/// Uninitialized memory that is kept for the next request.
///
/// The operating system clears each fresh page at the first write. For a shard of keys and values this takes longer than the
/// copy that fills it, so memory that has been written once is kept.
class Buffer {
 public:
  explicit Buffer(Allocate allocate = allocate_on_heap) : allocate_(allocate) {}

  /// The first n elements, with unspecified values. Valid until a longer request, which drops the contents.
  ///
  /// A buffer that is too short grows by at least a half; otherwise a cache that gains one key per step would need fresh
  /// memory in every step. Pages beyond the n elements are never written, so they take no physical memory.
  /// @tparam T trivial type with an alignment of at most 16
  template <class T>
  std::span<T> first(std::size_t n) {
    if (n * sizeof(T) > capacity_) {
      const std::size_t larger = std::max(n * sizeof(T), capacity_ + capacity_ / 2);
      bytes_.reset();  // before the allocation: never hold both
      capacity_ = 0;
      bytes_ = allocate_(larger);
      capacity_ = larger;
    }
    return {reinterpret_cast<T*>(bytes_.get()), n};
  }

  /// Leaves the bytes to others, which use them until the process ends.
  void leave() { static_cast<void>(bytes_.release()); }

 private:
  Allocate allocate_;
  Memory bytes_{nullptr, nullptr};
  std::size_t capacity_ = 0;
};

}  // namespace tree_attn
