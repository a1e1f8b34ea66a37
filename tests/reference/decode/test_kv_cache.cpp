// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The KV cache of the CPU and its sessions: growth changes no bit, and invalid input is refused.
#include "reference/decode/backend.hpp"
#include "reference/decode/decode.hpp"
#include "tests/support/message.hpp"
#include "tests/support/same_bits.hpp"
#include "tests/support/tensor_workload.hpp"
#include "tests/support/values_in_keys.hpp"

#include <doctest/doctest.h>

#include <stdexcept>

namespace tree_attn::test {
namespace {

constexpr KeyRange kCapacity{64, 300};

/// Positions [begin, end) of one batch entry.
Shard part(TensorWorkload& workload, std::int64_t entry, std::int64_t begin, std::int64_t end) {
  return workload.keys_and_values(entry, {begin, end});
}

std::vector<std::int64_t> used(const std::vector<std::int64_t>& lengths) { return rows_in_use(lengths, kCapacity); }

}  // namespace

TEST_CASE("cache: borrowed positions are read in place, and appended ones follow them") {
  const std::vector<std::int64_t> lengths{300, 90};
  const auto workload = normal_workload(5200, {.batch = 2, .n_keys = 300}, lengths);
  const Forest<float> want = decode_shard(workload->query(0), workload->shard(kCapacity), lengths, workload->scale);
  const auto no_memory = [](std::size_t) -> std::byte* { throw std::logic_error("a copy"); };
  const auto cache = cpu_backend().make_cache(workload->shape(), kCapacity);
  const auto session = cache->open(workload->scale);

  // Borrow all positions. Nothing is copied, but the view is of a longer array and not dense.
  cache->borrow(workload->shard(kCapacity), used(lengths));
  CHECK(same_bits(session->decode({workload->query(0), lengths}).host(), want));
  CHECK_THROWS_AS(cache->shard(kCapacity.size(), no_memory), std::logic_error);
  const Tensor k = copy_of(workload->shard(kCapacity).k), v = copy_of(workload->shard(kCapacity).v);
  cache->borrow({k.view(), v.view(), kCapacity.begin}, used(lengths));
  CHECK(cache->shard(kCapacity.size(), no_memory).k.data == k.bytes.data());

  // Borrow a part, then append the rest, also after some positions were truncated.
  for (int repetition = 0; repetition < 2; ++repetition) {
    if (repetition == 0) cache->borrow(workload->shard(kCapacity), std::vector<std::int64_t>{100, 20});
    if (repetition == 1) cache->truncate(0, 40), cache->truncate(1, 0);
    for (std::int64_t i = 0; i < 2; ++i) {
      const Shard rest = part(*workload, i, kCapacity.begin + cache->lengths()[static_cast<std::size_t>(i)],
                              lengths[static_cast<std::size_t>(i)]);
      cache->append(i, rest.k, rest.v);
    }
    CHECK(same_bits(session->decode({workload->query(0), lengths}).host(), want));
  }

  // Positions appended in place of borrowed ones, in the middle of a subtree, take effect, and the borrowed memory is
  // unchanged.
  cache->borrow(workload->shard(kCapacity), used(lengths));
  const auto other = cpu_backend().make_cache(workload->shape(), kCapacity);
  for (std::int64_t i = 0; i < 2; ++i) {
    cache->truncate(i, 13);
    other->append(i, part(*workload, i, 64, 77).k, part(*workload, i, 64, 77).v);
    for (KvCache* each : {cache.get(), other.get()})
      each->append(i, part(*workload, 1 - i, 0, 10).k, part(*workload, 1 - i, 0, 10).v);
  }
  const std::vector<std::int64_t> now{87, 87};
  CHECK(same_bits(session->decode({workload->query(0), now}).host(),
                  other->open(workload->scale)->decode({workload->query(0), now}).host()));
  cache->borrow(workload->shard(kCapacity), used(lengths));
  CHECK(same_bits(session->decode({workload->query(0), lengths}).host(), want));

  // shard() copies the positions in use unchanged.
  std::vector<std::byte> memory;
  const Shard copy = cache->shard(kCapacity.size(), [&memory](std::size_t n) {
    memory.resize(n);
    return memory.data();
  });
  CHECK(memory.size() == static_cast<std::size_t>(kCapacity.size() * cache->shape().bytes_per_position()));
  CHECK(copy_of(copy.k.entry(0)).bytes == copy_of(k.view().entry(0)).bytes);
  CHECK(copy_of(copy.v.entry(1).positions(0, 20)).bytes == copy_of(v.view().entry(1).positions(0, 20)).bytes);
}

TEST_CASE("cache: what does not fit is refused in one line with the values, and changes nothing") {
  const auto workload = normal_workload(5300, {.batch = 2, .n_keys = 300});
  const auto cache = cpu_backend().make_cache(workload->shape(), {0, 5});
  const Shard three = part(*workload, 1, 0, 3);
  cache->append(1, three.k, three.v);
  CHECK_OUT_OF_RANGE(cache->append(1, three.k, three.v), "batch entry 1 holds 3 of 5 positions, 3 more do not fit");
  CHECK_OUT_OF_RANGE(cache->append(2, three.k, three.v), "KvCache::append: batch entry 2 of a batch of 2");
  CHECK_OUT_OF_RANGE(cache->append(-1, three.k, three.v), "KvCache::append: batch entry -1 of a batch of 2");
  CHECK_INVALID(cache->append(0, part(*workload, 1, 0, 2).k, three.v), "k has 1 batch entries and 2 positions");
  CHECK_INVALID(cache->append(0, workload->shard({0, 3}).k, workload->shard({0, 3}).v), "k has 2 batch entries and 3");
  TensorView other = three.k;
  other.dtype = DType::F16;
  CHECK_INVALID(cache->append(0, other, three.v), "KvCache::append: k is F16, but the cache takes F32");
  other = three.v;
  other.shape[3] = 15;
  CHECK_INVALID(cache->append(0, three.k, other), "v has 2 heads of 15 elements, but the cache has 2 of 16");
  CHECK_OUT_OF_RANGE(cache->truncate(1, 4), "KvCache::truncate: batch entry 1 holds 3 positions, not 4");
  CHECK_OUT_OF_RANGE(cache->borrow(workload->shard({1, 6}), std::vector<std::int64_t>{1, 1}), "row 0 is position 1");
  CHECK_OUT_OF_RANGE(cache->borrow(workload->shard({0, 5}), std::vector<std::int64_t>{1, 6}), "length 6 of batch entry 1");
  CHECK_INVALID(cache->borrow(workload->shard({0, 5}), std::vector<std::int64_t>{1}), "k has 2 batch entries, v has 2");
  CHECK(std::vector(cache->lengths().begin(), cache->lengths().end()) == std::vector<std::int64_t>{0, 3});

  // A step with a length beyond the positions held, and one with another shape of queries.
  const auto session = cache->open(1);
  CHECK_OUT_OF_RANGE(session->decode({workload->query(0), std::vector<std::int64_t>{0, 4}}), "batch entry 1 has 4 keys");
  CHECK_INVALID(session->decode({workload->query(0).entry(0), std::vector<std::int64_t>{0}}), "q is [1, 4, 1, 16] with 1");
  CHECK_NOTHROW(session->decode({workload->query(0), std::vector<std::int64_t>{0, 3}}));
}

TEST_CASE("cache: reset reuses the memory for another range, and empty ranges and empty batches have no states") {
  const auto workload = normal_workload(5400, {.batch = 2, .n_keys = 300});
  const auto cache = cpu_backend().make_cache(workload->shape(), {0, 200});
  const auto session = cache->open(workload->scale);
  for (const KeyRange capacity : {KeyRange{0, 200}, {192, 300}, {64, 65}, {300, 300}, {128, 200}}) {
    CAPTURE(capacity.begin);
    cache->reset(capacity);
    CHECK(cache->longest() == 0);
    cache->borrow(workload->shard(capacity), std::vector<std::int64_t>{capacity.size(), capacity.size()});
    CHECK(same_bits(session->decode({workload->query(0), workload->lengths()}).host(),
                    decode_shard(workload->query(0), workload->shard(capacity), workload->lengths(), workload->scale)));
    // Positions borrowed for one range are not kept for the next.
    cache->reset(capacity);
    for (std::int64_t i = 0; i < 2; ++i)
      cache->append(i, part(*workload, i, capacity.begin, capacity.end).k,
                    part(*workload, i, capacity.begin, capacity.end).v);
    CHECK(same_bits(session->decode({workload->query(0), workload->lengths()}).host(),
                    decode_shard(workload->query(0), workload->shard(capacity), workload->lengths(), workload->scale)));
  }
  AttentionShape none = workload->shape();
  none.batch = 0;
  const auto empty = cpu_backend().make_cache(none, {0, 100});
  TensorView q = workload->query(0);
  q.shape[0] = 0;
  CHECK(empty->open(1)->decode({q, {}}).host().n_rows() == 0);
  CHECK(empty->longest() == 0);
}

TEST_CASE("cache: values that are components of the keys are stored once, with the bits of values apart") {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const OwnedLeaves& leaves : {OwnedLeaves(KeyRange{0, kOpenEnd}), OwnedLeaves(kCapacity)})
      check_values_in_keys(cpu_backend(2), {dtype, dtype, 2, 4, 2, 24, 13}, leaves, 5290);
  }

  // What cannot be a part of the keys is refused.
  AttentionShape shape{DType::F32, DType::F32, 1, 2, 2, 8, 6, true};
  const auto cache = cpu_backend().make_cache(shape, {0, 100});
  std::mt19937 random(5291);
  const Tensor k = normal_tensor(random, {1, 2, 5, 8}), v = copy_of(k.view().components(6));
  const char* const apart = "KvCache::append: v is not a view of the first components of k, but the cache stores them once";
  CHECK_THROWS_WITH_AS(cache->append(0, k, v), apart, std::invalid_argument);
  TensorView other = k.view().components(6);
  other.stride[2] = 6;
  CHECK_THROWS_WITH_AS(cache->append(0, k, other), apart, std::invalid_argument);
  CHECK_THROWS_AS(cache->borrow({k.view(), v.view(), 0}, std::vector<std::int64_t>{5}), std::invalid_argument);
  CHECK(cache->longest() == 0);
  shape.value_dim = 9;
  CHECK_INVALID(cpu_backend().make_cache(shape, {0, 100}), "values of 9 elements of F32 are not components of keys of 8");
  shape.value_dim = 6, shape.value_dtype = DType::BF16;
  CHECK_THROWS_AS(cpu_backend().make_cache(shape, {0, 100}), std::invalid_argument);
  shape.dtype = shape.value_dtype = DType::F8_E4M3;
  CHECK_INVALID(cpu_backend().make_cache(shape, {0, 100})->set_scales({{1, 2}, {2, 1}}), "values are components");
}

}  // namespace tree_attn::test
