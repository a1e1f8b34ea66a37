// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The plain decode beside a cache.
#pragma once

#include "tree_attn/reference/decode/kv_cache.hpp"
#include "tree_attn/reference/decode/plain.hpp"

#include <cstddef>
#include <vector>

namespace tree_attn::test {

/// The plain decode of the keys that a cache holds.
inline Forest<float> plain_of(const KvCache& cache, const Step& step, double scale) {
  std::vector<std::byte> memory;
  const Shard rows = cache.shard(cache.longest(), [&](std::size_t n) { return (memory.resize(n), memory.data()); });
  return plain::decode(step, rows.k, rows.v, cache.leaves(), scale, cache.scales().k);
}

}  // namespace tree_attn::test
