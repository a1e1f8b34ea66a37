// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The model backend: time without elements, and states that show the order of merges.
#include "tree_attn/tests/support/model_backend.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <vector>

namespace tree_attn::test {
namespace {

/// A rate at which these tests wait for no time that matters.
constexpr double kFast = 1e15;

WorkloadShape shape_with(std::int64_t n_keys, std::int64_t batch = 1) {
  return {{.dtype = DType::BF16,
           .value_dtype = DType::BF16,
           .batch = batch,
           .heads = 4,
           .kv_heads = 2,
           .head_dim = 8,
           .value_dim = 6},
          n_keys,
          {}};
}

/// The states of a range of positions.
Forest<float> states_of(const WorkloadShape& shape, KeyRange range, std::vector<std::int64_t> lengths) {
  const auto workload = make_axes(shape, 1);
  const auto cache = model_backend(kFast).make_cache(shape, range);
  fill_at_start(*cache, *workload, lengths);
  return cache->open(1)->decode({workload->query(0), lengths}).host();
}

double seconds_of(const auto& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

TEST_CASE("model: a state is a function of its subtree and of its keys in use") {
  const WorkloadShape shape = shape_with(1000, 2);
  const std::vector<std::int64_t> lengths{1000, 700};
  const Forest<float> all = states_of(shape, {0, 1000}, lengths), part = states_of(shape, {512, 1000}, lengths);
  REQUIRE(all.subtrees() == cover(0, 1000));
  REQUIRE(part.subtrees() == cover(512, 1000));

  // [0, 512) is the one subtree that `part` lacks.
  const auto n = static_cast<std::ptrdiff_t>(all.block_size());
  CHECK(std::equal(all.states().begin() + n, all.states().end(), part.states().begin(), part.states().end()));

  // The weights count the keys in use: of entry 1, 188 in [512, 768) and none further on.
  for (std::size_t i = 0; i < all.subtrees().size(); ++i) {
    const Subtree subtree = all.subtrees()[i];
    for (std::int64_t r = 0; r < all.n_rows(); ++r) {
      const float* state = all.states().data() + static_cast<std::int64_t>(i) * n + r * state_size(all.d_v());
      const std::int64_t length = lengths[static_cast<std::size_t>(r / 4)];
      const std::int64_t in_use = OwnedLeaves({subtree.begin(), subtree.end()}).n_keys(length);
      CHECK(is_empty(state) == (in_use == 0));
      CHECK(state[kSum] == static_cast<float>(in_use));
    }
  }
  // Rows and columns differ, so a mistaken row shows.
  CHECK(all.states()[kValues] != all.states()[kValues + 1]);
  CHECK(all.states()[kValues] != all.states()[static_cast<std::size_t>(state_size(6)) + kValues]);
}

TEST_CASE("model: a decode takes as long as reading the keys and values in use, and messages advance meanwhile") {
  const WorkloadShape shape = shape_with(1000, 2);
  const auto workload = make_axes(shape, 1);
  const std::vector<std::int64_t> lengths{1000, 250};
  const double n_bytes = 1250 * 2 * (8 + 6) * 2;
  for (const double seconds : {0.02, 0.05}) {
    const Backend& backend = model_backend(n_bytes / seconds);
    const auto cache = backend.make_cache(shape, {0, 1000});
    fill_at_start(*cache, *workload, lengths);
    const auto session = cache->open(1);
    int n_calls = 0;
    const double took = seconds_of([&] { session->decode({workload->query(0), lengths}, [&] { ++n_calls; }); });
    CHECK(took >= seconds);
    CHECK(took < seconds + 1);  // a busy machine
    CHECK(n_calls > 1);
    CHECK(&model_backend(n_bytes / seconds) == &backend);
  }
  CHECK_THROWS_AS(model_backend(0), std::invalid_argument);
  CHECK_THROWS_AS(model_backend(std::nan("")), std::invalid_argument);
}

TEST_CASE("model: a cache of a petabyte takes no memory, and gives zeros to send") {
  const std::int64_t n_keys = std::int64_t{1} << 43;
  const WorkloadShape shape = shape_with(n_keys);
  const auto workload = make_axes(shape, 1);
  const Backend& backend = model_backend(1e30);
  const auto cache = backend.make_cache(shape, {0, n_keys});
  const std::vector<std::int64_t> lengths{n_keys};
  fill_at_start(*cache, *workload, lengths);
  CHECK(cache->lengths()[0] == n_keys);
  CHECK(backend.host_bytes(shape, n_keys, false) == 0);
  CHECK(cache->open(1) != nullptr);

  const Shard shard = cache->shard(1 << 20, [](std::size_t) -> std::byte* { throw std::logic_error("no copy is needed"); });
  CHECK(shard.k.shape == std::array<std::int64_t, 4>{1, 2, 1 << 20, 8});
  CHECK(shard.v.shape == std::array<std::int64_t, 4>{1, 2, 1 << 20, 6});
  for (const std::byte* byte : {shard.k.row(0, 0, 0), shard.k.row(0, 1, (1 << 20) - 1), shard.v.row(0, 1, (1 << 20) - 1)})
    CHECK(*byte == std::byte{0});

  // It appends, too, and a workload without elements has none to give.
  cache->truncate(0, 0);
  fill(*cache, *workload, std::vector<std::int64_t>{300});
  CHECK(cache->lengths()[0] == 300);
  CHECK_THROWS_AS(workload->whole(), std::logic_error);
  const TensorView q = workload->query(0);
  CHECK(std::all_of(q.data, q.data + 4 * 8 * 2, [](std::byte byte) { return byte == std::byte{0}; }));
}

}  // namespace tree_attn::test
