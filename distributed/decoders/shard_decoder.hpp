// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The cache of one rank's shard and the session that decodes it (section 6).
#pragma once

#include "tree_attn/reference/decode/backend.hpp"

#include <memory>
#include <span>

namespace tree_attn {

/// A cache with a session over it.
struct OpenCache {
  std::shared_ptr<KvCache> cache;
  std::unique_ptr<DecodeSession> session;
};

/// Decodes the shard of one rank on a backend.
class ShardDecoder {
 public:
  /// @param shape of the queries, keys and values
  /// @param leaves of this rank
  /// @param capacity rows that there is room for before the cache grows
  /// @param scale multiplies q.k
  ShardDecoder(const Backend& backend, const AttentionShape& shape, const OwnedLeaves& leaves, std::int64_t capacity,
               double scale);
  /// A shard with room for all positions of a range, in the contiguous order.
  ShardDecoder(const Backend& backend, const AttentionShape& shape, KeyRange range, double scale)
      : ShardDecoder(backend, shape, range, range.size(), scale) {}

  KvCache& cache() const { return *own_.cache; }
  /// The cache, which may outlive this object.
  std::shared_ptr<const KvCache> shared_cache() const { return own_.cache; }
  DecodeSession& session() const { return *own_.session; }
  double scale() const { return scale_; }
  /// A second cache on the same backend, in the types and the order of cache(), with room for n keys of other ranks.
  OpenCache open_cache(std::int64_t n) const;

 private:
  const Backend& backend_;
  double scale_;
  OpenCache own_;
};

/// A decoder over a shard in host memory. The CPU reads it in place, so that memory must outlive the decoder; a device
/// copies it.
/// @param q queries of the shape to come, [b, n_h, l, d_h]
/// @param lengths keys in use per batch entry [b], over the whole sequence
/// @param scale multiplies q.k
ShardDecoder open_shard(const Backend& backend, const TensorView& q, const Shard& shard,
                        std::span<const std::int64_t> lengths, double scale);

}  // namespace tree_attn
