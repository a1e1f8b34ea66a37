// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The addresses of rows in a cache in host memory, and what is copied when.
#include "reference/decode/cpu_cache.hpp"

#include "reference/state/subtree.hpp"

#include <algorithm>

namespace tree_attn {

CpuCache::CpuCache(const AttentionShape& shape, KeyRange capacity, int n_threads)
    : KvCache(shape, shape, capacity),
      n_threads_(n_threads),
      most_(capacity.size()),
      borrowed_(static_cast<std::size_t>(shape.batch), 0) {}

LeafRows CpuCache::leaf(std::int64_t i, std::int64_t h, std::int64_t position) const {
  const std::int64_t a = position - capacity().begin;
  if (a < borrowed_[static_cast<std::size_t>(i)]) {
    return {shard_.k.row(i, h, a), shard_.v.row(i, h, a),
            shard_.k.stride[2] * static_cast<std::int64_t>(bytes_of(shard_.k.dtype)),
            shard_.v.stride[2] * static_cast<std::int64_t>(bytes_of(shard_.v.dtype))};
  }
  const std::int64_t row = own_row(i, h, a);
  return {own_k_.get() + row * key_bytes(), own_v_.get() + row * value_bytes(), key_bytes(), value_bytes()};
}

void CpuCache::reserve() {
  if (own_k_ != nullptr) return;
  const std::int64_t n_rows = own_row(shape().batch, 0, 0);
  own_k_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(n_rows * key_bytes()));
  own_v_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(n_rows * value_bytes()));
}

Shard CpuCache::shard(std::int64_t n, const std::function<std::byte*(std::size_t)>& memory) const {
  const AttentionShape& s = shape();
  Shard dense{TensorView::dense(nullptr, s.dtype, {s.batch, s.kv_heads, n, s.head_dim}),
              TensorView::dense(nullptr, s.value_dtype, {s.batch, s.kv_heads, n, s.value_dim}), capacity().begin};
  const auto in_place = [&](const std::byte* k, const std::byte* v) {
    dense.k.data = k, dense.v.data = v;
    return dense;
  };
  // In place, if the positions in use are dense there.
  const bool used_is_borrowed = std::equal(borrowed_.begin(), borrowed_.end(), lengths().begin());
  if (used_is_borrowed && shard_.k.stride == dense.k.stride && shard_.v.stride == dense.v.stride)
    return in_place(shard_.k.data, shard_.v.data);
  const bool none_is_borrowed = std::all_of(borrowed_.begin(), borrowed_.end(), [](std::int64_t b) { return b == 0; });
  if (none_is_borrowed && n == most_ && own_k_ != nullptr) return in_place(own_k_.get(), own_v_.get());

  // Else copied row by row; positions that an entry does not use are not written.
  const std::int64_t n_rows = s.batch * s.kv_heads * n;
  std::byte *k = memory(static_cast<std::size_t>(n_rows * (key_bytes() + value_bytes()))), *v = k + n_rows * key_bytes();
  in_place(k, v);
  for (std::int64_t i = 0; i < s.batch; ++i) {
    const std::int64_t used = std::min(n, lengths()[static_cast<std::size_t>(i)]);
    for (std::int64_t h = 0; h < s.kv_heads; ++h, k += n * key_bytes(), v += n * value_bytes()) {
      for (std::int64_t a = 0; a < used; ++a) {
        const LeafRows row = leaf(i, h, capacity().begin + a);
        std::copy_n(row.k, key_bytes(), k + a * key_bytes());
        std::copy_n(row.v, value_bytes(), v + a * value_bytes());
      }
    }
  }
  return dense;
}

void CpuCache::copy_rows(std::int64_t entry, std::int64_t first, const TensorView& k, const TensorView& v) {
  for (std::int64_t h = 0; h < shape().kv_heads; ++h) {
    for (std::int64_t a = 0; a < k.shape[2]; ++a) {
      const std::int64_t row = own_row(entry, h, first + a);
      std::copy_n(k.row(0, h, a), key_bytes(), own_k_.get() + row * key_bytes());
      std::copy_n(v.row(0, h, a), value_bytes(), own_v_.get() + row * value_bytes());
    }
  }
}

void CpuCache::write(std::int64_t entry, std::int64_t first, const TensorView& k, const TensorView& v) {
  // Positions from `first` on are no longer borrowed. A leaf has one stride, so if it was borrowed in part, all of its rows
  // move to memory of the cache.
  std::int64_t& borrowed = borrowed_[static_cast<std::size_t>(entry)];
  const std::int64_t kept = std::min(borrowed, first), begin = capacity().begin;
  borrowed = std::max<std::int64_t>(0, (begin + kept) / kLeafKeys * kLeafKeys - begin);
  copy_rows(entry, borrowed, shard_.k.entry(entry).positions(borrowed, kept),
            shard_.v.entry(entry).positions(borrowed, kept));
  copy_rows(entry, first, k, v);
}

void CpuCache::write_all(const Shard& shard, std::span<const std::int64_t> lengths) {
  shard_ = shard;
  std::copy(lengths.begin(), lengths.end(), borrowed_.begin());
}

}  // namespace tree_attn
