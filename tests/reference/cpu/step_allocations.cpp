// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A decode step of a session on the CPU allocates nothing.
#include "tree_attn/reference/decode/backend.hpp"
#include "tree_attn/tests/support/count_allocations.hpp"
#include "tree_attn/tests/support/tensor_workload.hpp"

#include <doctest/doctest.h>

namespace tree_attn::test {

TEST_CASE("step: appending a position and decoding allocate nothing, including the first step") {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const auto workload =
        normal_workload(5500, {.batch = 2, .heads = 4, .kv_heads = 2, .n_queries = 2, .n_keys = 300, .dtype = dtype});
    const KeyRange capacity{37, 300};
    for (const auto& [borrows, n_threads] : {std::pair{false, 1}, {true, 1}, {false, 3}, {true, 3}}) {
      const auto cache = cpu_backend(n_threads).make_cache(workload->shape(), capacity);
      cache->reserve();
      const auto session = cache->open(workload->scale);
      std::vector<std::int64_t> lengths{100, 90};
      if (borrows) cache->borrow(workload->shard(capacity), std::vector<std::int64_t>{100 - 37, 90 - 37});
      for (std::int64_t i = 0; i < 2 && !borrows; ++i) {
        const Shard start = workload->keys_and_values(i, {37, lengths[static_cast<std::size_t>(i)]});
        cache->append(i, start.k, start.v);
      }
      const TensorView q = workload->query(0);
      const std::function<void()> progress = [] {};
      std::vector<Shard> next(2);
      for (int step = 0; step < 190; ++step) {
        for (std::size_t i = 0; i < 2; ++i)
          next[i] = workload->keys_and_values(static_cast<std::int64_t>(i), {lengths[i], lengths[i] + 1});
        const int before = n_allocations;
        for (std::size_t i = 0; i < 2; ++i) cache->append(static_cast<std::int64_t>(i), next[i].k, next[i].v), ++lengths[i];
        const Forest<float>& states = session->decode({q, lengths}, progress).host();
        const int allocated = n_allocations - before;
        REQUIRE(allocated == 0);
        REQUIRE(states.subtrees().size() > 1);
      }
    }
  }
  // The counter works.
  const int before = n_allocations;
  const std::vector<float> some(1000);
  CHECK(n_allocations == before + 1);
}

TEST_CASE("step: in the dealt order a step allocates nothing unless the capacity grows") {
  const auto workload = normal_workload(5600, {.batch = 2, .heads = 4, .kv_heads = 2, .n_keys = 700});
  for (const int p : {1, 3}) {
    const auto cache =
        cpu_backend(p).make_cache(workload->shape(), OwnedLeaves(dealt_ranges(p)[0], LeafOrder::kDealt), kLeafKeys);
    const auto session = cache->open(workload->scale);
    const TensorView q = workload->query(0);
    int n_grown = 0, n_steps = 0;
    for (std::int64_t n = 1; n <= 700; ++n) {
      const std::vector<std::int64_t> lengths{n, n};
      const std::int64_t capacity = cache->capacity();
      const Shard next[] = {workload->keys_and_values(0, {n - 1, n}), workload->keys_and_values(1, {n - 1, n})};
      const bool is_own = cache->leaves().n_keys(n) > cache->longest();
      const int before = n_allocations;
      for (std::int64_t i = 0; i < 2 && is_own; ++i) cache->append(i, next[i].k, next[i].v);
      session->decode({q, lengths});
      const int allocated = n_allocations - before;
      if (cache->capacity() != capacity) ++n_grown;
      if (n == 1 || cache->capacity() != capacity) continue;
      REQUIRE(allocated == 0);
      ++n_steps;
    }
    CHECK(n_grown >= 2);
    CHECK(n_grown <= 4);
    CHECK(n_steps > 690);
  }
}

}  // namespace tree_attn::test
