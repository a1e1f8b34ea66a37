// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The keys and values of one shard, in the memory that the kernels read: a cache that grows at its end (sections 5
/// and 6).
///
/// This header includes neither Eigen nor CUDA.
#pragma once

#include "reference/state/key_range.hpp"
#include "reference/tensor/shape.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace tree_attn {

class DecodeSession;

/// Keys and values of a range of positions in host memory. Row 0 of k and v is the key at position `begin`.
struct Shard {
  TensorView k;                                            ///< [b, n_kv, n, d_h]
  TensorView v;                                            ///< [b, n_kv, n, d_v]
  std::int64_t begin = 0;                                  ///< global position of row 0
  std::int64_t end() const { return begin + k.shape[2]; }  ///< one past the last position
};

/// Number of positions of a range that are in use, where the sequence has `length` keys.
std::int64_t positions_in_use(std::int64_t length, KeyRange range);
/// The same for every batch entry. @param lengths [b], from the start of the sequence @returns [b], from range.begin
std::vector<std::int64_t> positions_in_use(std::span<const std::int64_t> lengths, KeyRange range);

/// Keys and values of the positions in capacity(). Each batch entry uses a prefix of them.
///
/// Batch entry i holds the positions [capacity().begin, capacity().begin + lengths()[i]). append() adds the next positions
/// and does not copy those already held. A session (open()) computes states over the whole capacity. Positions not in use
/// count as the empty set, so the states have the same shape in every step.
class KvCache {
 public:
  virtual ~KvCache() = default;
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  /// The axes, and the types in which the cache stores keys and values.
  const AttentionShape& shape() const { return stored_; }
  /// The positions that the cache may hold.
  KeyRange capacity() const { return capacity_; }
  /// Positions in use per batch entry [b], counted from capacity().begin.
  std::span<const std::int64_t> lengths() const { return lengths_; }
  /// Number of positions in use by the longest batch entry.
  std::int64_t longest() const;
  /// Bytes of keys and values for all positions of the capacity, owned or borrowed.
  std::int64_t bytes() const { return capacity_.size() * stored_.bytes_per_position(); }

  /// Appends the next positions of one batch entry.
  /// @param entry batch entry
  /// @param k [1, n_kv, n, d_h]
  /// @param v [1, n_kv, n, d_v]
  /// @throws std::invalid_argument if the axes or types differ from those of the cache
  /// @throws std::out_of_range if the entry does not exist or n positions do not fit
  void append(std::int64_t entry, const TensorView& k, const TensorView& v);
  /// Removes all positions of a batch entry except the first n.
  /// @throws std::out_of_range if the entry does not exist or holds fewer than n positions
  void truncate(std::int64_t entry, std::int64_t n);
  /// Removes all positions and sets another range of positions. The memory is kept.
  /// @throws std::out_of_range if the range is longer than the capacity at construction
  void reset(KeyRange capacity);
  /// Replaces the contents by the first lengths[i] positions of a shard. A cache in host memory reads them in place, so the
  /// memory of the shard must remain valid until the next reset() or the end of the cache. A cache on a device copies them.
  /// @param shard row 0 is the position capacity().begin
  /// @param lengths positions in use per batch entry [b]
  /// @throws as append()
  void borrow(const Shard& shard, std::span<const std::int64_t> lengths);
  /// Allocates the memory for all positions of the capacity that are not borrowed. The first append() calls it.
  virtual void reserve() = 0;

  /// The first n positions of all batch entries in host memory, dense. They are not copied if they already are. Positions
  /// that a batch entry does not use are unspecified.
  /// @param memory called with a number of bytes if a copy is needed; returns memory of that size
  /// @pre n <= longest()
  virtual Shard shard(std::int64_t n, const std::function<std::byte*(std::size_t)>& memory) const = 0;
  /// Prepares decode steps: allocates the workspace and the memory for states. The cache must outlive the session.
  /// @param scale multiplies q.k
  virtual std::unique_ptr<DecodeSession> open(double scale) const = 0;

 protected:
  /// @param shape axes, and the types in which keys and values are appended
  /// @param stored axes, and the types in which they are stored
  KvCache(const AttentionShape& shape, const AttentionShape& stored, KeyRange capacity);
  /// Stores positions of an entry after the `first` ones that it holds. All checks have passed.
  virtual void write(std::int64_t entry, std::int64_t first, const TensorView& k, const TensorView& v) = 0;
  /// Implements borrow(); all checks have passed. This default appends entry by entry, for a cache that does not read host
  /// memory.
  virtual void write_all(const Shard& shard, std::span<const std::int64_t> lengths);

 private:
  void check_entry(const char* function, std::int64_t entry) const;
  void check_axes(const char* function, const TensorView& view, const char* name, DType given, DType stored,
                  std::int64_t dim) const;

  AttentionShape given_, stored_;
  KeyRange capacity_;
  std::int64_t max_size_;  ///< size of the capacity at construction
  std::vector<std::int64_t> lengths_;
};

}  // namespace tree_attn
