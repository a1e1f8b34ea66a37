// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The plain decode beside a cache.
#pragma once

#include "reference/decode/backend.hpp"
#include "reference/decode/plain.hpp"
#include "tests/support/same_bits.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

namespace tree_attn::test {

/// The plain decode of the keys that a cache holds.
inline Forest<float> plain_of(const KvCache& cache, const Step& step, double scale) {
  std::vector<std::byte> memory;
  const Shard rows = cache.shard(cache.longest(), [&](std::size_t n) { return (memory.resize(n), memory.data()); });
  return plain::decode(step, rows.k, rows.v, cache.leaves(), scale, cache.scales().k);
}

/// Checks that a step over a cache has the bits of the plain decode.
inline void check_plain(const KvCache& cache, const Step& step, double scale) {
  const auto session = cache.open(scale);
  const Forest<float>& fast = session->decode(step).host();
  const Forest<float> slow = plain_of(cache, step, scale);
  REQUIRE(fast.subtrees() == slow.subtrees());
  REQUIRE(same_numbers(fast.states(), slow.states()));
}

}  // namespace tree_attn::test
