// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The cache of one rank's shard and the session that decodes it (section 6).
#pragma once

#include "reference/decode/backend.hpp"

#include <memory>
#include <span>

namespace tree_attn {

/// A cache with a session over it.
struct OpenCache {
  std::unique_ptr<KvCache> cache;
  std::unique_ptr<DecodeSession> session;
};

/// Decodes the shard of one rank on a backend.
class ShardDecoder {
 public:
  /// @param shape of the queries, keys and values
  /// @param capacity positions of this rank
  /// @param scale multiplies q.k
  ShardDecoder(const Backend& backend, const AttentionShape& shape, KeyRange capacity, double scale);

  KvCache& cache() const { return *own_.cache; }
  DecodeSession& session() const { return *own_.session; }
  /// A second cache on the same backend, in the types that cache() stores, for up to n positions of other ranks.
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
