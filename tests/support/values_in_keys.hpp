// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A cache whose values are components of the keys, beside one that stores them apart.
#pragma once

#include "reference/decode/backend.hpp"
#include "tests/support/same_bits.hpp"
#include "tests/support/tensors.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace tree_attn::test {

/// Appends, cuts and borrows have equal bits in both, and the values take no memory.
inline void check_values_in_keys(const Backend& backend, AttentionShape shape, const OwnedLeaves& leaves, unsigned seed) {
  std::mt19937 random(seed);
  const Tensor rows = normal_tensor(random, {shape.batch, shape.kv_heads, 400, shape.head_dim}, shape.dtype),
               q = normal_tensor(random, {shape.batch, shape.heads, 3, shape.head_dim}, shape.dtype);
  const TensorView keys = rows.view(), in_keys = keys.components(shape.value_dim);
  const Tensor apart = copy_of(in_keys);
  const auto cache_of = [&](bool values_in_keys) {
    shape.values_in_keys = values_in_keys;
    return backend.make_cache(shape, leaves, 2);  // full at first
  };
  const auto one = cache_of(true), two = cache_of(false);
  const auto steps = one->open(0.3), steps_of_two = two->open(0.3);
  const std::int64_t first = leaves.range().begin;
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(shape.batch));
  std::int64_t l = 0;
  const auto is_equal = [&] {
    for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] = first + one->lengths()[i];
    l = 1 + l % 3;
    const Step step{q.view().positions(0, l), lengths};
    return same_bits(steps->decode(step).host(), steps_of_two->decode(step).host());
  };
  std::array<std::vector<std::byte>, 2> memory;
  const auto read = [&](const KvCache& cache, std::vector<std::byte>& to) {
    return cache.shard(cache.longest(), [&](std::size_t n) { return to.resize(n), to.data(); });
  };
  for (const std::int64_t n : {1, 70, 1, 1, 130, 3}) {
    for (std::int64_t i = 0; i < shape.batch; ++i) {
      const std::int64_t begin = one->lengths()[static_cast<std::size_t>(i)], end = begin + n + i;
      one->append(i, keys.entry(i).positions(begin, end), in_keys.entry(i).positions(begin, end));
      two->append(i, keys.entry(i).positions(begin, end), apart.view().entry(i).positions(begin, end));
    }
    CHECK(is_equal());
    const Shard held = read(*one, memory[0]);
    CHECK(held.v.data == held.k.data);
    if (n == 70) one->truncate(0, 20), two->truncate(0, 20);
  }
  const AttentionShape stored = backend.stored(shape);
  const std::int64_t key = stored.pitch_of(stored.key_bytes()), value = stored.pitch_of(stored.value_bytes());
  CHECK(one->bytes() * (key + value) == two->bytes() * key);

  // What is read out, keys once, is what a cache takes.
  const Shard of_one = read(*one, memory[0]), of_two = read(*two, memory[1]);
  CHECK(of_one.v.data == of_one.k.data);
  for (std::int64_t i = 0; i < shape.batch; ++i) {
    const std::int64_t n = one->lengths()[static_cast<std::size_t>(i)];
    CHECK(copy_of(of_one.k.entry(i).positions(0, n)).bytes == copy_of(of_two.k.entry(i).positions(0, n)).bytes);
    CHECK(copy_of(of_one.v.entry(i).positions(0, n)).bytes == copy_of(of_two.v.entry(i).positions(0, n)).bytes);
  }
  const std::vector<std::int64_t> held(one->lengths().begin(), one->lengths().end());
  const Tensor k = copy_of(of_one.k);
  one->reset(leaves);
  one->borrow({k.view(), k.view().components(shape.value_dim), first}, held);
  CHECK(is_equal());
  for (KvCache* cache : {one.get(), two.get()}) {
    const bool is_one = cache == one.get();
    cache->truncate(0, 10);
    cache->append(0, keys.entry(0).positions(300, 305), (is_one ? in_keys : apart.view()).entry(0).positions(300, 305));
  }
  CHECK(is_equal());
}

}  // namespace tree_attn::test
