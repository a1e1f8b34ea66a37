// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Keys and values of one shard, where the kernels are (sections 5 and 6): a cache that grows at its end.
///
/// No Eigen and no CUDA is included here, so that any compiler may include it.
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

/// Keys and values of a range of positions in host memory: row 0 of k and v is the key at position `begin`.
struct Shard {
  TensorView k;                                            ///< [b, n_kv, n, d_h]
  TensorView v;                                            ///< [b, n_kv, n, d_v]
  std::int64_t begin = 0;                                  ///< global position of row 0
  std::int64_t end() const { return begin + k.shape[2]; }  ///< one behind the last position held
};

/// Positions of a range that are in use: lengths [b] count keys over the whole sequence, the result from range.begin.
std::vector<std::int64_t> positions_in_use(std::span<const std::int64_t> lengths, KeyRange range);

/// Keys and values of the positions capacity(), of which every batch entry uses the first few.
///
/// Batch entry i holds the positions [capacity().begin, capacity().begin + lengths()[i]). append() adds the next ones and
/// copies nothing that is already held. A session (open()) computes states over the whole capacity; positions that are not
/// in use count as the empty set, so the states have one shape from the first step to the last.
class KvCache {
 public:
  virtual ~KvCache() = default;
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  /// The axes, and the types in which keys and values are stored here.
  const AttentionShape& shape() const { return stored_; }
  /// Positions that the cache may hold.
  KeyRange capacity() const { return capacity_; }
  /// Positions in use per batch entry [b], counted from capacity().begin.
  std::span<const std::int64_t> lengths() const { return lengths_; }
  /// Positions that the longest batch entry uses.
  std::int64_t longest() const;
  /// Bytes of keys and values for all positions of the capacity, own or borrowed.
  std::int64_t bytes() const { return capacity_.size() * stored_.bytes_per_position(); }

  /// Adds the next positions of one batch entry.
  /// @param k [1, n_kv, n, d_h]
  /// @param v [1, n_kv, n, d_v]
  /// @throws std::invalid_argument if axes or types are not those of the cache
  /// @throws std::out_of_range if the entry does not exist, or n positions do not fit
  void append(std::int64_t entry, const TensorView& k, const TensorView& v);
  /// Drops all positions of a batch entry but the first n.
  /// @throws std::out_of_range if the entry does not exist, or holds fewer
  void truncate(std::int64_t entry, std::int64_t n);
  /// Drops everything, and takes another range of positions. The memory is kept.
  /// @throws std::out_of_range if the range is longer than the capacity that the cache was made for
  void reset(KeyRange capacity);
  /// Holds the first lengths[i] positions of a shard, in place of all it held before. In host memory they are read where
  /// they are, so that memory must outlive the cache or the next reset(); a device copies them.
  /// @param shard row 0 is the position capacity().begin
  /// @param lengths positions in use per batch entry [b]
  /// @throws as append()
  void borrow(const Shard& shard, std::span<const std::int64_t> lengths);
  /// Takes the memory for all positions of the capacity that are not borrowed. append() does so itself, once.
  virtual void reserve() = 0;

  /// The first n positions of all batch entries in host memory, dense: where they are if they are so, else a copy. What a
  /// batch entry does not use is unspecified.
  /// @param memory called with a number of bytes if a copy is needed: memory that holds it
  /// @pre n <= longest()
  virtual Shard shard(std::int64_t n, const std::function<std::byte*(std::size_t)>& memory) const = 0;
  /// Prepares decode steps: takes workspace and memory for states once. The cache must outlive the session.
  /// @param scale multiplies q.k
  virtual std::unique_ptr<DecodeSession> open(double scale) const = 0;

 protected:
  /// @param shape as keys and values are given
  /// @param stored as they are stored
  KvCache(const AttentionShape& shape, const AttentionShape& stored, KeyRange capacity);
  /// Stores n positions of an entry behind the `first` that it holds; all checks are done.
  virtual void write(std::int64_t entry, std::int64_t first, const TensorView& k, const TensorView& v) = 0;
  /// Borrows; all checks are done. Unless a cache reads host memory, it appends entry by entry.
  virtual void write_all(const Shard& shard, std::span<const std::int64_t> lengths);

 private:
  void check_entry(const char* function, std::int64_t entry) const;
  void check_axes(const char* function, const TensorView& view, const char* name, DType given, DType stored,
                  std::int64_t dim) const;

  AttentionShape given_, stored_;
  KeyRange capacity_;
  std::int64_t most_;  ///< positions that there is memory for
  std::vector<std::int64_t> lengths_;
};

}  // namespace tree_attn
