// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A cache that grows at its end, in rows or in pages, in the memory that kernels read (sections 5 and 6).
///
/// This header includes neither Eigen nor CUDA.
#pragma once

#include "reference/decode/kv_scales.hpp"
#include "reference/decode/shard.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace tree_attn {

class DecodeSession;
class PageTable;
struct PageRule;

/// Keys and values of a range of the tree.
///
/// Batch entry i holds the rows [0, lengths()[i]): row a is the key at position leaves().position(a). append() adds the next
/// rows. Rows that are held stay where they are in a cache in host memory; a cache on a device copies them when its capacity
/// doubles. A session (open()) computes states over the whole range. Positions that are not in use count as the empty set.
class KvCache {
 public:
  virtual ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  /// The axes, and the types in which keys and values are stored.
  const AttentionShape& shape() const { return stored_; }
  /// The range of the tree whose keys the cache holds, and their rows.
  const OwnedLeaves& leaves() const { return leaves_; }
  /// Rows per batch entry that there is room for.
  std::int64_t capacity() const { return capacity_; }
  /// Factors of its elements. @throws std::invalid_argument for other types, unless is_scale(), with rows, and in pages
  const KvScales& scales() const { return scales_; }
  void set_scales(KvScales scales);
  /// Rows in use per batch entry [b], and by the longest one.
  std::span<const std::int64_t> lengths() const { return lengths_; }
  std::int64_t longest() const;
  /// The name of what decides the bits of its states, which all ranks of a decode have alike: "portable", on the CPU and on
  /// scalar cores, or the instruction of tensor cores and the first compute capability whose sums they have, as "mma 9.0".
  virtual std::string_view arithmetic() const { return "portable"; }
  virtual bool is_on_device() const { return false; }  ///< whether rows, and views for append(), may be in device memory
  /// Bytes of keys and values for all rows of the capacity, with padding, owned or borrowed; in pages those of the pool.
  std::int64_t bytes() const;

  /// Appends the next rows of one batch entry. Where they exceed the capacity, it doubles, up to the size of the range. A
  /// cache of F8_E4M3 takes F8_E4M3 as it is, and any other x as Float8::narrow(x / scale), so large ones saturate.
  /// @param entry batch entry @param k [1, n_kv, n, d_h] @param v [1, n_kv, n, d_v]
  /// @throws std::invalid_argument for other axes or types, a negative axis, elements without data, or values that are not
  ///   in the keys as they are to be; std::out_of_range if the entry does not exist or n positions do not fit
  void append(std::int64_t entry, const TensorView& k, const TensorView& v);
  /// Removes all rows of a batch entry but the first n. @throws std::out_of_range if it holds fewer, does not
  /// exist, or row n would follow rows that were given back
  void truncate(std::int64_t entry, std::int64_t n);
  /// Removes all rows and sets another range. The capacity stays.
  void reset(const OwnedLeaves& leaves);
  /// Lets the rows lie in pages of a pool. append() then throws std::out_of_range also for too few pages, truncate() gives
  /// them back, and nothing can be borrowed. @pre no row is in use, no session is open, and scales are set
  void use_pages(const PageRule& rule);
  /// The table of a cache in pages; null for another one.
  const PageTable* pages() const { return pages_.get(); }
  /// Lets a batch entry without rows begin with the first n rows of another one, in the same pages until one of them appends
  /// to the last. @throws std::logic_error without pages, std::invalid_argument for other scales; otherwise as truncate()
  void share(std::int64_t from, std::int64_t to, std::int64_t n);
  /// Replaces the contents by the first lengths[i] rows of a shard. A cache in host memory reads them in place, so the
  /// memory of the shard must remain valid until the next reset() or the end of the cache. A cache on a device copies them,
  /// from device memory on the default stream. If it throws after the checks, no row is in use.
  /// @param shard begins where the range of the cache does @param lengths rows in use of each [b] @throws as append()
  void borrow(const Shard& shard, std::span<const std::int64_t> lengths);
  /// Allocates memory for n rows, or for the capacity if that is more. If it throws, the cache is as it was.
  /// @throws std::out_of_range for more than 2^62 bytes; std::bad_alloc or DeviceError without memory
  void reserve(std::int64_t n = 0);

  /// The first n rows of all batch entries in host memory, dense. They are not copied if they already are. Rows that a batch
  /// entry does not use, or has given back, are unspecified.
  /// @param memory called with a number of bytes if a copy is needed; returns memory of that size
  /// @throws std::out_of_range unless 0 <= n <= longest()
  Shard shard(std::int64_t n, const std::function<std::byte*(std::size_t)>& memory) const;
  /// Copies the first n rows to device memory, for a cache on a device, in the order of the default stream.
  /// @param memory for all keys and, after them, all values @throws as shard(); std::logic_error if the cache is on the host
  Shard shard_on_device(std::int64_t n, std::byte* memory) const;
  /// Prepares decode steps, of any number of queries each. The cache outlives the session. @param scale multiplies q.k
  /// @param most_queries a step of up to so many takes no memory: workspace, and memory for states; 0: one query
  /// @throws std::invalid_argument for a scale that is not finite
  virtual std::unique_ptr<DecodeSession> open(double scale, std::int64_t most_queries = 0) const = 0;

 protected:
  /// @param shape axes, and the types in which keys and values are appended
  /// @param stored axes, and the types in which they are stored
  /// @param capacity rows that there will be room for at first
  /// @throws std::invalid_argument as require_shape() @throws std::out_of_range for a negative capacity, or as reserve()
  KvCache(const AttentionShape& shape, const AttentionShape& stored, const OwnedLeaves& leaves, std::int64_t capacity);
  /// Takes the memory for so many rows, where it has not been taken, and keeps the rows in use. If it throws, nothing has
  /// changed. @param capacity at least capacity(), which it becomes then
  virtual void allocate(std::int64_t capacity) = 0;
  virtual void cleared() {}  ///< called by reset() and borrow(), when no row is in use
  /// Stores rows of an entry, in pages those of one leaf, after the `first` ones that it holds. All checks have passed.
  virtual void write(std::int64_t entry, std::int64_t first, const TensorView& k, const TensorView& v) = 0;
  /// Implements borrow(); all checks have passed. This default appends entry by entry, for a cache that does not read host
  /// memory.
  virtual void write_all(const Shard& shard, std::span<const std::int64_t> lengths);
  /// Implements shard() and shard_on_device(); all checks have passed.
  virtual Shard read_all(std::int64_t n, const std::function<std::byte*(std::size_t)>& memory) const = 0;
  virtual Shard read_all_on_device(std::int64_t n, std::byte* memory) const;
  /// Copies the first n rows of a page; the default says that there are no pages.
  virtual void copy_page(std::int64_t from, std::int64_t to, std::int64_t n);
  virtual void settle() {}  ///< stores rows that wait, before a page is shared or given back

 private:
  void check_entry(const char* function, std::int64_t entry, std::int64_t n_rows = 0) const;
  void check_views(const char* function, const TensorView& k, const TensorView& v, bool converts) const;
  void check_rows(const char* function, std::int64_t n) const;
  void check_capacity(const char* function, std::int64_t capacity) const;

  AttentionShape given_, stored_;
  OwnedLeaves leaves_;
  KvScales scales_;
  std::int64_t capacity_ = 0;
  std::vector<std::int64_t> lengths_;
  std::unique_ptr<PageTable> pages_;
};

}  // namespace tree_attn
