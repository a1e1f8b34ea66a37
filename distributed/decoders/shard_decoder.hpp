// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What one rank keeps from step to step: the cache of its shard, and for the ring the caches of shards that pass by
/// (section 6).
#pragma once

#include "reference/decode/backend.hpp"

#include <array>
#include <memory>
#include <span>

namespace tree_attn {

/// A cache with a session over it.
struct OpenCache {
  std::unique_ptr<KvCache> cache;
  std::unique_ptr<DecodeSession> session;
};

/// Decodes the shard of a rank on a backend, and shards of other ranks as they arrive. Memory is taken once.
class ShardDecoder {
 public:
  /// @param shape of the queries, keys and values
  /// @param capacity positions of this rank
  /// @param scale multiplies q.k
  ShardDecoder(const Backend& backend, const AttentionShape& shape, KeyRange capacity, double scale);

  KvCache& cache() const { return *own_.cache; }
  DecodeSession& session() const { return *own_.session; }
  /// A cache for shards of up to `longest` positions, in the types that cache() stores: number 0 or 1, opened when it is
  /// first asked for.
  OpenCache& hop(int number, std::int64_t longest);
  /// Closes the caches of hop().
  void drop_hops();

 private:
  const Backend& backend_;
  double scale_;
  OpenCache own_;
  std::array<OpenCache, 2> hops_;
};

/// A decoder over a shard that is in host memory. The CPU reads it there, so that memory must outlive the decoder; a device
/// copies it.
/// @param q queries of the shape to come, [b, n_h, l, d_h]
/// @param lengths keys in use per batch entry [b], over the whole sequence
/// @param scale multiplies q.k
ShardDecoder open_shard(const Backend& backend, const TensorView& q, const Shard& shard,
                        std::span<const std::int64_t> lengths, double scale);

}  // namespace tree_attn
