// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One decode without a cache of its own.
#include "reference/decode/decode.hpp"

#include "reference/decode/backend.hpp"

namespace tree_attn {

Forest<float> decode_shard(const TensorView& q, const Shard& shard, std::span<const std::int64_t> lengths, double scale,
                           const std::function<void()>& progress) {
  const auto cache = cpu_backend().make_cache(shape_of(q, shard.k, shard.v), {shard.begin, shard.end()});
  cache->borrow(shard, rows_in_use(lengths, cache->leaves()));
  return std::move(cache->open(scale)->decode({q, lengths}, progress).host());
}

}  // namespace tree_attn
