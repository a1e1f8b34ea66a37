// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A cache in host memory: borrowed rows stay in place, appended rows are copied (sections 5 and 6).
#pragma once

#include "reference/cpu/leaf_kernel.hpp"
#include "reference/decode/kv_cache.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace tree_attn {

/// The shape as the CPU stores it: rows without padding.
inline AttentionShape stored_on_host(AttentionShape shape) {
  shape.row_multiple = 1;
  return shape;
}

/// The first rows of a batch entry may be borrowed; the others are in memory of the cache, in segments [b, n_kv, n, d]. A
/// capacity that doubles adds a segment and moves no row but those of a leaf that a segment would cut. The operating system
/// provides memory of a segment when it is first written. A cache in pages has one segment, the pool, as if it were one
/// entry.
class CpuCache final : public KvCache {
 public:
  /// @param n_threads of each session
  CpuCache(const AttentionShape& shape, const OwnedLeaves& leaves, std::int64_t capacity, int n_threads);

  /// Rows of one head from row a on, up to the end of its leaf.
  LeafRows leaf(std::int64_t entry, std::int64_t head, std::int64_t a) const;

  std::unique_ptr<DecodeSession> open(double scale, std::int64_t most_queries = 0) const override;

 protected:
  Shard read_all(std::int64_t n, const std::function<std::byte*(std::size_t)>& memory) const override;
  void allocate(std::int64_t capacity) override;
  /// Segments end where leaves do, in every range; those of pages are for all batch entries.
  void cleared() override {
    std::ranges::fill(borrowed_, 0);
    if (pages() != nullptr) segments_.clear();
  }
  void copy_page(std::int64_t from, std::int64_t to, std::int64_t n) override;
  void write(std::int64_t entry, std::int64_t first, const TensorView& k, const TensorView& v) override;
  void write_all(const Shard& shard, std::span<const std::int64_t> lengths) override;

 private:
  std::int64_t key_bytes() const { return shape().key_bytes(); }
  std::int64_t value_bytes() const { return shape().value_bytes(); }
  /// Rows [begin, begin + size) of every head.
  struct Segment {
    std::int64_t begin, size;
    std::unique_ptr<std::byte[]> k, v;
  };
  /// The segment with row a: the last one that begins at or before it.
  const Segment& segment_of(std::int64_t a) const {
    std::size_t i = segments_.size() - 1;
    while (segments_[i].begin > a) --i;
    return segments_[i];
  }
  std::int64_t row_in(const Segment& segment, std::int64_t i, std::int64_t h, std::int64_t a) const {
    return (i * shape().kv_heads + h) * segment.size + a - segment.begin;
  }
  void copy_rows(std::int64_t entry, std::int64_t first, const TensorView& k, const TensorView& v);

  int n_threads_;
  std::vector<std::int64_t> borrowed_;  ///< rows of each entry that are in shard_; whole leaves if others follow
  Shard shard_;
  std::vector<float> row_;         ///< one that is quantised
  std::vector<Segment> segments_;  ///< ascending; none before the first row is written
};

}  // namespace tree_attn
