// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The cache of one rank's shard and the session that decodes it (section 6).
#pragma once

#include "reference/decode/backend.hpp"
#include "reference/decode/page_table.hpp"

#include <cstdint>
#include <memory>
#include <span>

namespace tree_attn {

/// A cache with a session over it.
struct OpenShard {
  const Backend* backend = nullptr;  ///< of the cache
  std::shared_ptr<KvCache> cache;    ///< may outlive the session
  std::unique_ptr<DecodeSession> session;
  std::int64_t most_queries = 0;  ///< of the steps that take no memory, in a decoder neither; see KvCache::open()
  std::int64_t room = 0;          ///< keys of the longest sequence that there is memory for: the same on every rank

  /// Takes memory for sequences of so many keys, and where that is more than `room` for 1 / p more: a range of an even cut
  /// grows twofold at most. All ranks call it with the same lengths, so all take memory, and begin new graphs, in the same
  /// call, whichever of them holds the keys.
  /// @throws as KvCache::reserve()
  void grow(std::int64_t longest, int n_ranks);
};

/// An empty cache, and a session over it.
/// @param shape of the queries, keys and values
/// @param leaves of this rank
/// @param capacity keys of the longest sequence that there is room for before the cache grows
/// @param scale multiplies q.k @param pages of the cache; a rule of 0 pages: its rows lie one after the other
/// @param scales of keys and values of F8_E4M3
/// @param most_queries of a step that takes no memory; 0: it is taken when a step needs it
/// @throws std::invalid_argument for a scale that is not finite, a window without pages, and as KvCache::set_scales()
OpenShard open_shard(const Backend& backend, const AttentionShape& shape, const OwnedLeaves& leaves, std::int64_t capacity,
                     double scale, const PageRule& pages = {}, const KvScales& scales = {}, std::int64_t most_queries = 0);
/// Opens a shard with room for all positions of a range, in the contiguous order.
inline OpenShard open_shard(const Backend& backend, const AttentionShape& shape, KeyRange range, double scale) {
  return open_shard(backend, shape, range, range.end, scale);
}
/// Opens a cache over a shard in host memory. The CPU reads it in place, so that memory must outlive the cache; a device
/// copies it.
/// @param q queries of steps to come, [b, n_h, l, d_h], of which l are the most
/// @param lengths keys in use per batch entry [b], over the whole sequence
OpenShard open_shard(const Backend& backend, const TensorView& q, const Shard& shard, std::span<const std::int64_t> lengths,
                     double scale);

}  // namespace tree_attn
