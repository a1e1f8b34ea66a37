// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A decode step of a session on the CPU allocates nothing.
#include "reference/decode/backend.hpp"
#include "tests/support/count_allocations.hpp"
#include "tests/support/tensor_workload.hpp"

#include <doctest/doctest.h>

namespace tree_attn::test {

TEST_CASE("step: appending a position and decoding allocate nothing, including the first step, in both orders") {
  constexpr std::int64_t kKeys = 700, kBegin = 64;
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const auto workload =
        normal_workload(5500, {.batch = 2, .heads = 4, .kv_heads = 2, .n_queries = 2, .n_keys = kKeys, .dtype = dtype});
    const OwnedLeaves chunk(KeyRange{kBegin, kKeys}), dealt(dealt_ranges(3)[0], LeafOrder::kDealt);
    for (const auto& [leaves, borrows] : {std::pair{chunk, false}, {chunk, true}, {dealt, false}}) {
      for (const int n_threads : {1, 3}) {
        const auto cache = cpu_backend(n_threads).make_cache(workload->shape(), leaves, leaves.n_keys(kKeys));
        cache->reserve();
        const auto session = cache->open(workload->scale, 2);
        std::vector<std::int64_t> lengths{100, 90};
        if (borrows)
          cache->borrow(workload->shard({kBegin, kKeys}), rows_in_use(lengths, leaves));
        else
          fill(*cache, *workload, lengths);
        const TensorView q = workload->query(0);
        const std::function<void()> progress = [] {};
        std::vector<Shard> next(2);
        while (lengths[0] < kKeys) {
          for (std::size_t i = 0; i < 2; ++i)
            next[i] = workload->keys_and_values(static_cast<std::int64_t>(i), {lengths[i], lengths[i] + 1});
          const int before = n_allocations;
          for (std::size_t i = 0; i < 2; ++i) {
            const std::int64_t n_before = leaves.n_keys(lengths[i]++);
            if (leaves.n_keys(lengths[i]) > n_before) cache->append(static_cast<std::int64_t>(i), next[i].k, next[i].v);
          }
          session->decode({q, lengths}, progress);
          const int allocated = n_allocations - before;
          REQUIRE(allocated == 0);
        }
      }
    }
  }
  // The counter works.
  const int before = n_allocations;
  const std::vector<float> some(1000);
  CHECK(n_allocations == before + 1);
}

TEST_CASE("step: up to the most queries that a session was opened for, steps of any number allocate nothing") {
  constexpr std::int64_t kKeys = 700, kMost = 40;
  const auto workload = normal_workload(5501, {.batch = 2, .heads = 4, .kv_heads = 2, .n_queries = kMost, .n_keys = kKeys});
  const TensorView q = workload->query(0);
  for (const OwnedLeaves& leaves : {OwnedLeaves(KeyRange{0, kKeys}), OwnedLeaves(dealt_ranges(3)[0], LeafOrder::kDealt)}) {
    for (const int n_threads : {1, 3}) {
      const auto cache = cpu_backend(n_threads).make_cache(workload->shape(), leaves, leaves.n_keys(kKeys));
      const std::vector<std::int64_t> lengths{kKeys, 90};
      fill(*cache, *workload, lengths);
      const auto session = cache->open(workload->scale, kMost);
      for (const std::int64_t l : {1, 5, 40, 2, 17, 40, 3, 1}) {
        const Step step{q.positions(0, l), lengths, {.causal = true}};
        CAPTURE(l);
        const int before = n_allocations;
        session->decode(step);
        CHECK(n_allocations - before == 0);
      }
      const auto grows = cache->open(workload->scale);
      grows->decode({q.positions(0, 1), lengths});
      const int before = n_allocations;
      grows->decode({q, lengths});
      CHECK(n_allocations > before);
    }
  }
}

}  // namespace tree_attn::test
