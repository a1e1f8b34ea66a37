// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Arguments that break a precondition of reference/ are refused in every build, in a line with the function and the
/// values.
#include "reference/cpu/thread_pool.hpp"
#include "reference/decode/backend.hpp"
#include "reference/decode/decode.hpp"
#include "reference/energy/affine_hull.hpp"
#include "reference/energy/bayes.hpp"
#include "reference/energy/hopfield.hpp"
#include "reference/energy/moments.hpp"
#include "reference/energy/reverse_mode.hpp"
#include "reference/energy/stream.hpp"
#include "reference/oracle/algorithms.hpp"
#include "reference/oracle/moment_state.hpp"
#include "tests/support/message.hpp"
#include "tests/support/tensor_workload.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <stdexcept>

namespace tree_attn::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kHuge = std::int64_t{1} << 62;

using Lengths = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("arguments: ranges are cut for at least one rank, at multiples of at least one key") {
  CHECK_INVALID(coarse_ranges(100, 0, 64), "coarse_ranges: 0 ranges; at least 1 is needed");
  CHECK_INVALID(coarse_ranges(100, 2, 0), "coarse_ranges: leaves of 0 keys; 1 to 2^62 are possible");
  CHECK_INVALID(coarse_ranges(100, 2, 48), "coarse_ranges: leaves of 48 keys; a power of two is needed");
  CHECK_INVALID(even_ranges(kHuge + 1, 2, 64), "even_ranges: 4611686018427387905 keys; 0 to 2^62 can be cut");
  CHECK(even_ranges(kHuge, 2, kHuge)[0].end == kHuge);
  CHECK_INVALID(ranges_of_lengths(Lengths{3, -2}), "length -2 of range 1, which begins at 3");
  CHECK_THROWS_AS(ranges_of_lengths(Lengths{kHuge, 1}), std::invalid_argument);
  CHECK_OUT_OF_RANGE(closed(KeyRange{0, kOpenEnd}, kHuge + 1), "a sequence of 4611686018427387905 keys; at most 2^62");
  CHECK(closed(KeyRange{0, kOpenEnd}, -5).empty());
  for (const auto& [begin, longest, end] : {std::array{64, 0, 64}, {192, 190, 192}, {64, 65, 128}, {64, 128, 128}})
    CHECK(closed({begin, kOpenEnd}, longest).end == end);
  CHECK(closed({64, 70}, 1000).end == 70);
}

TEST_CASE("arguments: the leaves of a range ascend, and have no row but their own") {
  for (const LeafOrder order : {LeafOrder::kContiguous, LeafOrder::kDealt}) {
    constexpr std::int64_t kUnit = std::int64_t{1} << 34;
    CHECK_THROWS_AS(OwnedLeaves({kUnit, 0}, order), std::invalid_argument);
    CHECK_THROWS_AS(OwnedLeaves({-kUnit, kUnit}, order), std::invalid_argument);
    CHECK_THROWS_AS(OwnedLeaves({0, kHuge + kUnit}, order), std::invalid_argument);
    const OwnedLeaves leaves({kUnit, 2 * kUnit}, order);
    for (const std::int64_t n : {std::int64_t{0}, std::int64_t{-5}, -kHuge - kHuge}) CHECK(leaves.n_keys(n) == 0);
    CHECK_THROWS_AS(leaves.position(-1), std::out_of_range);
    CHECK_THROWS_AS(leaves.position(leaves.most_keys()), std::out_of_range);
    CHECK_THROWS_AS(OwnedLeaves({0, 0}, order).position(0), std::out_of_range);
  }
  CHECK_INVALID(OwnedLeaves({5, 3}), "OwnedLeaves: [5, 3) is no range of positions, which ascend from 0 to 2^62");
  CHECK_INVALID(OwnedLeaves({37, 100}), "OwnedLeaves: [37, 100) begins inside a leaf of 64 keys");
  CHECK(OwnedLeaves({37, 37}).most_keys() == 0);
  CHECK_OUT_OF_RANGE(OwnedLeaves({0, 10}).position(10), "OwnedLeaves::position: row 10 of 10");
}

TEST_CASE("arguments: the subtrees of a forest touch") {
  CHECK_INVALID(Forest<float>(-1, 4), "Forest: -1 rows of 4 components");
  Forest<float> forest(1, 1);
  set_empty(forest.next(), 1), forest.push({3, 0});
  CHECK_INVALID(forest.push({3, 2}), "Forest::push: a subtree from position 16 on, after one that ends at 8");
  CHECK_THROWS_AS(forest.assign(std::vector<Subtree>{{3, 0}, {3, 2}}), std::invalid_argument);
  CHECK_INVALID(forest.assign(std::vector<Subtree>{{3, 0}, {3, 1}}), "Forest::assign: subtrees 0 and 1 are siblings");
}

TEST_CASE("arguments: a cache has axes that are not negative, and query heads that share key/value heads evenly") {
  const AttentionShape good{.heads = 4, .kv_heads = 2, .head_dim = 8, .value_dim = 8};
  const Backend& backend = cpu_backend();
  AttentionShape shape = good;
  shape.heads = 3;
  CHECK_INVALID(backend.make_cache(shape, {0, 10}), "3 query heads are not a multiple of 2 KV heads");
  shape = good, shape.batch = -1;
  CHECK_INVALID(backend.make_cache(shape, {0, 10}), "b = -1, n_h = 4, n_kv = 2, d_h = 8, d_v = 8");
  shape = good, shape.head_dim = 0;
  CHECK_THROWS_AS(backend.make_cache(shape, {0, 10}), std::invalid_argument);
  shape = good, shape.dtype = static_cast<DType>(99);
  CHECK_THROWS_AS(backend.make_cache(shape, {0, 10}), std::invalid_argument);
  CHECK_OUT_OF_RANGE(backend.make_cache(good, KeyRange{0, 10}, -1), "KvCache: a capacity of -1 rows");
  CHECK_OUT_OF_RANGE(backend.make_cache(good, KeyRange{0, kHuge}, kHuge), "4611686018427387904 rows of 128 bytes");
  CHECK_THROWS_AS(backend.make_cache(good, KeyRange{0, kHuge}, 10)->reserve(kHuge / 64), std::out_of_range);
}

TEST_CASE("arguments: what a cache appends, borrows and decodes has elements, and as many as its axes say") {
  const auto workload = normal_workload(5310, {.batch = 2, .n_keys = 300});
  const auto cache = cpu_backend().make_cache(workload->shape(), {0, 300});
  const Shard three = workload->keys_and_values(1, {0, 3});
  cache->append(1, three.k, three.v);
  TensorView k = three.k, v = three.v;
  k.data = nullptr;
  CHECK_INVALID(cache->append(1, k, v), "KvCache::append: k has no data");
  v.data = nullptr;
  CHECK_INVALID(cache->append(1, three.k, v), "KvCache::append: v has no data");
  k = three.k, v = three.v, k.shape[2] = v.shape[2] = -2;
  CHECK_INVALID(cache->append(1, k, v), "KvCache::append: k has an axis of negative length -2");
  CHECK(cache->lengths()[1] == 3);
  // Without positions there need be no data.
  k.shape[2] = v.shape[2] = 0, k.data = v.data = nullptr;
  CHECK_NOTHROW(cache->append(1, k, v));

  Shard all = workload->shard({0, 300});
  all.v.data = nullptr;
  CHECK_INVALID(cache->borrow(all, Lengths{1, 1}), "KvCache::borrow: v has no data");
  all = workload->shard({0, 300}), all.k.on_device = true;
  CHECK_INVALID(cache->borrow(all, Lengths{1, 1}), "KvCache::borrow: k is in memory of a device");
  CHECK_OUT_OF_RANGE(rows_in_use(Lengths{3, -4}, cache->leaves()), "rows_in_use: length -4 of batch entry 1");

  CHECK_INVALID(cache->open(std::numeric_limits<double>::infinity()),
                "DecodeSession: a scale of inf; a finite number is needed");
  const auto session = cache->open(1);
  TensorView q = workload->query(0);
  q.data = nullptr;
  CHECK_INVALID(session->decode({q, Lengths{0, 3}}), "DecodeSession::decode: q has no data");
  CHECK_OUT_OF_RANGE(session->decode({workload->query(0), Lengths{0, -3}}), "batch entry 1 has -3 keys");
  CHECK_NOTHROW(session->decode({workload->query(0), Lengths{0, 3}}));

  std::vector<std::byte> memory(1 << 20);
  const auto give = [&memory](std::size_t) { return memory.data(); };
  CHECK_OUT_OF_RANGE(cache->shard(4, give), "KvCache::shard: 4 rows, but the longest batch entry holds 3");
  CHECK_THROWS_AS(cache->shard(-1, give), std::out_of_range);
  CHECK_INVALID(cache->shard(3, [](std::size_t) -> std::byte* { return nullptr; }), "no memory for 1536 bytes");
  CHECK_THROWS_AS(cache->shard_on_device(4, nullptr), std::out_of_range);
  CHECK_THROWS_AS(cache->shard_on_device(3, nullptr), std::logic_error);
  CHECK_OUT_OF_RANGE(three.k.entry(1), "TensorView::entry: 1 of 1");
  CHECK_THROWS_AS(three.k.entry(-1), std::out_of_range);
}

TEST_CASE("arguments: outputs have one state or mean per row") {
  const std::vector<float> states(6);
  CHECK_INVALID(finish_rows(states, 2, 2), "finish_rows: 6 elements for 2 states of 2 + 2");
  CHECK_THROWS_AS(finish_rows(states, -1, -8), std::invalid_argument);
  const auto workload = normal_workload(5320, {.heads = 2, .kv_heads = 1, .head_dim = 4, .value_dim = 3, .n_keys = 5});
  const MomentLayout layout{3, Products::Squares, 4};
  CHECK_THROWS_AS(enlarge_values(layout, workload->k(), workload->v().positions(0, 4)), std::invalid_argument);
  TensorView k = workload->k();
  k.data = nullptr;
  CHECK_INVALID(enlarge_values(layout, k, workload->v()), "enlarge_values: k has no data");
}

TEST_CASE("arguments: a workload has as many steps, lengths and keys as it says") {
  const WorkloadShape good{{.batch = 2, .heads = 2, .kv_heads = 1, .head_dim = 4, .value_dim = 4}, 9, {}};
  CHECK_INVALID(make_workload(good, 1, 0), "Workload: 0 steps");
  WorkloadShape shape = good;
  shape.lengths = {9};
  CHECK_INVALID(make_workload(shape, 1, 1), "Workload: 1 lengths for a batch of 2");
  shape.lengths = {9, 10};
  CHECK_INVALID(make_workload(shape, 1, 1), "Workload: length 10 of batch entry 1 is not in [0, 9]");
  shape = good, shape.n_keys = -1;
  CHECK_THROWS_AS(make_workload(shape, 1, 1), std::invalid_argument);
  shape = good, shape.n_queries = -1;
  CHECK_INVALID(make_workload(shape, 1, 1), "l = -1; an axis is negative");
  shape = good, shape.value_dim = -4;
  CHECK_THROWS_AS(make_workload(shape, 1, 1), std::invalid_argument);

  const auto workload = make_workload(good, 1, 3);
  for (const int step : {-1, 3}) {
    CHECK_THROWS_AS(workload->lengths(step), std::out_of_range);
    CHECK_THROWS_AS(workload->query(step), std::out_of_range);
  }
  CHECK_OUT_OF_RANGE(workload->query(3), "Workload: step 3 of 3");
  CHECK_OUT_OF_RANGE(workload->keys_and_values(2, {0, 1}), "SyntheticWorkload: batch entry 2 of a batch of 2");
  CHECK_OUT_OF_RANGE(workload->keys_and_values(0, {4, 3}), "SyntheticWorkload: positions [4, 3) of 9");
  const auto cache = cpu_backend().make_cache(good, {0, 9});
  CHECK_INVALID(fill(*cache, *workload, Lengths{9}), "fill: 1 lengths for a batch of 2");
}

TEST_CASE("arguments: threads share up to 2^32 - 1 items") {
  ThreadPool pool(1);
  const auto nothing = [](void*, int, std::int64_t) {};
  CHECK_OUT_OF_RANGE(pool.run(-1, true, nothing, nullptr, {}), "ThreadPool::run: -1 items; 0 to 2^32 - 1 are possible");
  CHECK_THROWS_AS(pool.run(std::int64_t{1} << 32, true, nothing, nullptr, {}), std::out_of_range);
}

TEST_CASE("arguments: formulas of appendix C, of Hopfield memories and of the tape are refused other shapes") {
  const Matrix X = Matrix::Ones(3, 2);
  const Vector one = Vector::Ones(2), two = Vector::Ones(3);
  CHECK_INVALID(affine_hull(Matrix(0, 2)), "0 values of 2 components; at least one is needed, and all must be finite");
  CHECK_THROWS_AS(affine_hull(Matrix::Constant(2, 2, kNaN)), std::invalid_argument);
  CHECK_THROWS_AS(signature(Matrix::Ones(2, 3)), std::invalid_argument);
  CHECK_THROWS_AS(signature(Matrix()), std::invalid_argument);
  CHECK_THROWS_AS(moment_series(one, X, X, two, 2), std::invalid_argument);
  std::mt19937 random(1);
  CHECK_THROWS_AS(hopfield_capacity(0, {.beta = 1}, random), std::invalid_argument);
  CHECK_THROWS_AS(hopfield_capacity(4, {.beta = 1, .n_trials = 0}, random), std::invalid_argument);
  AttentionStream stream(2);
  CHECK_THROWS_AS(stream.add(one, two, one), std::invalid_argument);
  CHECK_THROWS_AS(stream.add(one, one, two), std::invalid_argument);

  const auto x = Reverse<double>::variables(Vector::Ones(3));
  const Reverse<double> y = x(0) * x(1) * x(2);
  CHECK_THROWS_AS(Reverse<double>::gradient(y, 6), std::invalid_argument);
  CHECK_THROWS_AS(Reverse<double>::gradient(y, -1), std::invalid_argument);
  Reverse<double>::variables(Vector::Ones(1));
  CHECK_THROWS_AS(Reverse<double>::gradient(y, 1), std::invalid_argument);

  std::vector<VirtualDevice> devices{{X, X}, {X, Matrix::Ones(3, 4)}};
  CHECK_THROWS_AS(tree_decode_paper(one, devices), std::invalid_argument);
  CHECK_THROWS_AS(tree_energy_gradient(one, devices, {}), std::invalid_argument);
  CHECK_THROWS_AS(tree_energy(one, Vector(), {}), std::invalid_argument);
}

}  // namespace tree_attn::test
