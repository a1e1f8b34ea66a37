// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The addresses of rows in a cache in host memory, and what is copied when.
#include "reference/cpu/cpu_cache.hpp"

#include "reference/decode/page_table.hpp"
#include "reference/state/subtree.hpp"

#include <algorithm>
#include <utility>

namespace tree_attn {

CpuCache::CpuCache(const AttentionShape& shape, const OwnedLeaves& leaves, std::int64_t capacity, int n_threads)
    : KvCache(shape, stored_on_host(shape), leaves, capacity),
      n_threads_(n_threads),
      borrowed_(static_cast<std::size_t>(shape.batch), 0),
      // So that write() allocates nothing: pages have been taken by then.
      row_(static_cast<std::size_t>(std::max(shape.head_dim, shape.value_dim))) {}

LeafRows CpuCache::leaf(std::int64_t i, std::int64_t h, std::int64_t a) const {
  if (a < borrowed_[static_cast<std::size_t>(i)]) {
    return {shard_.k.row(i, h, a), shard_.v.row(i, h, a),
            shard_.k.stride[2] * static_cast<std::int64_t>(bytes_of(shard_.k.dtype)),
            shard_.v.stride[2] * static_cast<std::int64_t>(bytes_of(shard_.v.dtype))};
  }
  if (pages() != nullptr) {
    a = pages()->row(std::exchange(i, 0), a);
    if (a == PageTable::kNone) return {nullptr, nullptr, key_bytes(), value_bytes()};
  }
  const Segment& segment = segment_of(a);
  const std::int64_t row = row_in(segment, i, h, a);
  const std::byte* const k = segment.k.get() + row * key_bytes();
  if (shape().values_in_keys) return {k, k, key_bytes(), key_bytes()};
  return {k, segment.v.get() + row * value_bytes(), key_bytes(), value_bytes()};
}

void CpuCache::allocate(std::int64_t capacity) {
  const std::int64_t end = segments_.empty() ? 0 : segments_.back().begin + segments_.back().size,
                     needed = pages() == nullptr ? capacity : pages()->n_rows();
  if (!segments_.empty() && end >= needed) return;

  // A leaf has one stride. If the last segment ends inside one, all of its rows move to the new segment.
  Segment next{end / kLeafKeys * kLeafKeys, 0, {}, {}};
  next.size = needed - next.begin;
  const std::int64_t n_rows = (pages() == nullptr ? shape().batch : 1) * shape().kv_heads * next.size;
  next.k = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(n_rows * key_bytes()));
  next.v = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(n_rows * value_bytes()));
  for (std::int64_t i = 0; i < shape().batch; ++i) {
    const std::int64_t used = std::min(end, lengths()[static_cast<std::size_t>(i)]);
    for (std::int64_t h = 0; h < shape().kv_heads; ++h) {
      for (std::int64_t a = next.begin; a < used; ++a) {
        const LeafRows row = leaf(i, h, a);
        std::copy_n(row.k, key_bytes(), next.k.get() + row_in(next, i, h, a) * key_bytes());
        std::copy_n(row.v, value_bytes(), next.v.get() + row_in(next, i, h, a) * value_bytes());
      }
    }
  }
  segments_.push_back(std::move(next));
}

Shard CpuCache::read_all(std::int64_t n, const std::function<std::byte*(std::size_t)>& memory) const {
  const AttentionShape& s = shape();
  Shard dense = dense_shard(s, n, nullptr, leaves().range().begin, false);
  // In place, if the positions in use are dense there.
  const auto in_place = [&dense](const std::byte* k, const std::byte* v) {
    dense.k.data = k, dense.v.data = v;
    return dense;
  };
  const bool used_is_borrowed = std::equal(borrowed_.begin(), borrowed_.end(), lengths().begin());
  if (used_is_borrowed && shard_.k.stride == dense.k.stride && shard_.v.stride == dense.v.stride)
    return in_place(shard_.k.data, shard_.v.data);
  const bool none_is_borrowed = std::all_of(borrowed_.begin(), borrowed_.end(), [](std::int64_t b) { return b == 0; });
  if (pages() == nullptr && none_is_borrowed && segments_.size() == 1 && n == segments_[0].size)
    return in_place(segments_[0].k.get(), (s.values_in_keys ? segments_[0].k : segments_[0].v).get());

  // Else copied row by row; positions that an entry does not use, or whose page was given back, are not written.
  const std::int64_t n_rows = s.batch * s.kv_heads * n;
  std::byte *k = memory(static_cast<std::size_t>(n_rows * (key_bytes() + value_bytes()))), *v = k + n_rows * key_bytes();
  dense = dense_shard(s, n, k, dense.begin, false);
  for (std::int64_t i = 0; i < s.batch; ++i) {
    const std::int64_t used = std::min(n, lengths()[static_cast<std::size_t>(i)]);
    for (std::int64_t h = 0; h < s.kv_heads; ++h, k += n * key_bytes(), v += n * value_bytes()) {
      for (std::int64_t a = 0; a < used; ++a) {
        const LeafRows row = leaf(i, h, a);
        if (row.k == nullptr) continue;
        std::copy_n(row.k, key_bytes(), k + a * key_bytes());
        std::copy_n(row.v, value_bytes(), v + a * value_bytes());
      }
    }
  }
  return dense;
}

void CpuCache::copy_rows(std::int64_t entry, std::int64_t first, const TensorView& k, const TensorView& v) {
  const std::int64_t at = pages() == nullptr ? first : pages()->row(entry, first);
  for (std::int64_t h = 0; h < shape().kv_heads; ++h) {
    for (std::int64_t a = 0; a < k.shape[2]; ++a) {
      const Segment& segment = segment_of(at + a);
      const std::int64_t row = row_in(segment, pages() == nullptr ? entry : 0, h, at + a);
      const std::int64_t head = entry * shape().kv_heads + h;
      store_row(k, 0, h, a, KvScales::at(scales().k, head), shape().dtype, row_, segment.k.get() + row * key_bytes());
      if (value_bytes() > 0)
        store_row(v, 0, h, a, KvScales::at(scales().v, head), shape().value_dtype, row_,
                  segment.v.get() + row * value_bytes());
    }
  }
}

void CpuCache::write(std::int64_t entry, std::int64_t first, const TensorView& k, const TensorView& v) {
  // Positions from `first` on are no longer borrowed. A leaf has one stride, so if it was borrowed in part, all of its rows
  // move to memory of the cache.
  std::int64_t& borrowed = borrowed_[static_cast<std::size_t>(entry)];
  const std::int64_t kept = std::min(borrowed, first);
  borrowed = kept / kLeafKeys * kLeafKeys;
  if (borrowed < kept) {
    copy_rows(entry, borrowed, shard_.k.entry(entry).positions(borrowed, kept),
              shard_.v.entry(entry).positions(borrowed, kept));
  }
  copy_rows(entry, first, k, v);
}

void CpuCache::copy_page(std::int64_t from, std::int64_t to, std::int64_t n) {
  for (std::int64_t h = 0; h < shape().kv_heads && n > 0; ++h) {
    const Segment& pool = segments_.front();
    const std::int64_t row = row_in(pool, 0, h, from * kLeafKeys), to_row = row_in(pool, 0, h, to * kLeafKeys);
    std::copy_n(pool.k.get() + row * key_bytes(), n * key_bytes(), pool.k.get() + to_row * key_bytes());
    std::copy_n(pool.v.get() + row * value_bytes(), n * value_bytes(), pool.v.get() + to_row * value_bytes());
  }
}

void CpuCache::write_all(const Shard& shard, std::span<const std::int64_t> lengths) {
  shard_ = shard;
  std::copy(lengths.begin(), lengths.end(), borrowed_.begin());
}

}  // namespace tree_attn
