// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A cache in host memory: borrowed rows stay in place, appended rows are copied (sections 5 and 6).
#pragma once

#include "reference/decode/kv_cache.hpp"
#include "reference/decode/leaf_kernel.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace tree_attn {

/// The first positions of a batch entry may be borrowed; the others are in memory of the cache, [b, n_kv, N, d] for the
/// longest capacity N. The operating system provides a page of it when it is first written.
class CpuCache final : public KvCache {
 public:
  /// @param n_threads of each session
  CpuCache(const AttentionShape& shape, KeyRange capacity, int n_threads);

  /// Rows of one head from a global position on, up to the next multiple of 64 or the end of the capacity.
  LeafRows leaf(std::int64_t entry, std::int64_t head, std::int64_t position) const;

  void reserve() override;
  Shard shard(std::int64_t n, const std::function<std::byte*(std::size_t)>& memory) const override;
  std::unique_ptr<DecodeSession> open(double scale) const override;

 protected:
  void write(std::int64_t entry, std::int64_t first, const TensorView& k, const TensorView& v) override;
  void write_all(const Shard& shard, std::span<const std::int64_t> lengths) override;

 private:
  std::int64_t key_bytes() const { return shape().head_dim * static_cast<std::int64_t>(bytes_of(shape().dtype)); }
  std::int64_t value_bytes() const { return shape().value_dim * static_cast<std::int64_t>(bytes_of(shape().value_dtype)); }
  std::int64_t own_row(std::int64_t i, std::int64_t h, std::int64_t a) const {
    return (i * shape().kv_heads + h) * most_ + a;
  }
  void copy_rows(std::int64_t entry, std::int64_t first, const TensorView& k, const TensorView& v);

  int n_threads_;
  std::int64_t most_;                   ///< positions of an entry that there is memory for
  std::vector<std::int64_t> borrowed_;  ///< positions of each entry that are in shard_; whole leaves if others follow
  Shard shard_;
  std::unique_ptr<std::byte[]> own_k_, own_v_;
};

}  // namespace tree_attn
