// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Caches with a session over them.
#include "distributed/exchange/open_shard.hpp"

#include <algorithm>

namespace tree_attn {

void OpenShard::grow(std::int64_t longest, int n_ranks) {
  if (longest <= room) return;
  const std::int64_t n = std::min(kOpenEnd, (longest + longest / n_ranks + kLeafKeys - 1) / kLeafKeys * kLeafKeys);
  cache->reserve(cache->leaves().n_keys(n));
  room = n;
}

OpenShard open_shard(const Backend& backend, const AttentionShape& shape, const OwnedLeaves& leaves, std::int64_t capacity,
                     double scale, const PageRule& pages, const KvScales& scales, std::int64_t most_queries) {
  require(pages.n_pages != 0 || pages == PageRule{}, "open_shard: a window of ", pages.window, " keys and ", pages.sinks,
          " sinks for pages, but no number of pages");
  require(pages.window != 0 || pages.sinks <= 0, "open_shard: ", pages.sinks, " sinks for pages, but no window");
  OpenShard opened{&backend, backend.make_cache(shape, leaves, leaves.n_keys(capacity)), nullptr, most_queries, capacity};
  opened.cache->set_scales(scales);
  if (pages.n_pages != 0) opened.cache->use_pages(pages);
  opened.session = opened.cache->open(scale, most_queries);
  return opened;
}

OpenShard open_shard(const Backend& backend, const TensorView& q, const Shard& shard, std::span<const std::int64_t> lengths,
                     double scale) {
  OpenShard opened = open_shard(backend, shape_of(q, shard.k, shard.v), KeyRange{shard.begin, shard.end()}, shard.end(),
                                scale, {}, {}, q.shape[2]);
  opened.room = lengths.empty() ? 0 : *std::ranges::max_element(lengths);
  opened.cache->borrow(shard, rows_in_use(lengths, opened.cache->leaves()));
  return opened;
}

}  // namespace tree_attn
