// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Workloads: synthetic elements do not depend on the cut, and caches grow by one key per step. Files with errors are
/// tested with the program.
#include "reference/data/workload.hpp"
#include "reference/decode/backend.hpp"
#include "tests/support/tensor_files.hpp"
#include "tests/support/tensor_workload.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

namespace tree_attn::test {
namespace {

const WorkloadShape kShape{{.batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 5, .value_dim = 3}, 37, {37, 30}};

/// Tests whether a part, of one batch entry or of all, equals the whole at its positions.
bool is_part_of(const Shard& part, const Shard& whole, std::optional<std::int64_t> entry = {}) {
  const auto same = [&](const TensorView& some, const TensorView& all) {
    const TensorView at = all.positions(part.begin, part.end());
    return copy_of(some).bytes == copy_of(entry ? at.entry(*entry) : at).bytes;
  };
  return same(part.k, whole.k) && same(part.v, whole.v);
}

/// The positions of a cache up to its longest entry, in host memory; valid as long as `memory`.
Shard held_by(const KvCache& cache, std::vector<std::byte>& memory) {
  return cache.shard(cache.longest(), [&memory](std::size_t n) {
    memory.assign(n, std::byte{0});
    return memory.data();
  });
}

/// A file with q [1, 2, l, 3], k [1, 1, 6, 3], v [1, 1, 6, 2] with consecutive elements, and lengths if given.
std::string write_file(const Scratch& scratch, std::int64_t l, const std::vector<std::int64_t>& lengths = {}) {
  const auto counting = [](Shape shape) {
    std::vector<float> elements(static_cast<std::size_t>(n_elements(shape)));
    for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<float>(i);
    return Tensor(elements, shape);
  };
  const Tensor q = counting({1, 2, l, 3}), k = counting({1, 1, 6, 3}), v = counting({1, 1, 6, 2});
  SafetensorsWriter writer;
  writer.add("q", name_of(q.dtype), q.shape, q.bytes);
  writer.add("k", name_of(k.dtype), k.shape, k.bytes);
  writer.add("v", name_of(v.dtype), v.shape, v.bytes);
  const std::int64_t n_lengths[] = {static_cast<std::int64_t>(lengths.size())};
  if (!lengths.empty()) writer.add("lengths", "I64", n_lengths, std::as_bytes(std::span(lengths)));
  const std::string path = scratch.path("problem.safetensors");
  writer.write(path);
  return path;
}

}  // namespace

TEST_CASE("synthetic workload: the same elements for every cut") {
  const auto workload = make_workload(kShape, 5, 1);
  const Shard whole = workload->whole();
  CHECK(whole.end() == 37);
  for (int p = 1; p <= 8; ++p) {
    for (const KeyRange& range : even_ranges(37, p, 4)) {
      // A workload that has produced other rows before, and a new one.
      for (const std::int64_t entry : {0, 1}) {
        CHECK(is_part_of(workload->keys_and_values(entry, range), whole, entry));
        CHECK(is_part_of(make_workload(kShape, 5, 1)->keys_and_values(entry, range), whole, entry));
      }
    }
  }
}

TEST_CASE("synthetic workload: seeds, heads, positions and tensors differ") {
  const auto workload = make_workload(kShape, 5, 1), again = make_workload(kShape, 5, 1),
             other = make_workload(kShape, 6, 1);
  const Tensor k = copy_of(workload->whole().k), v = copy_of(workload->whole().v), q = copy_of(workload->query(0));
  CHECK(k.bytes == copy_of(again->whole().k).bytes);
  CHECK(q.bytes == copy_of(again->query(0)).bytes);
  CHECK(k.bytes != copy_of(other->whole().k).bytes);
  CHECK(q.bytes != copy_of(other->query(0)).bytes);
  // Any two rows differ in their first element: 2 * 2 * 37 of k, as many of v, 8 of q.
  std::vector<double> first;
  for (const Tensor* tensor : {&q, &k, &v})
    for_each_row(tensor->shape, [&](auto... row) { first.push_back(row_of(*tensor, row...)[0]); });
  std::sort(first.begin(), first.end());
  // 304 elements of 18 bits: few are equal by chance, and a mistake would make dozens equal.
  CHECK(std::unique(first.begin(), first.end()) - first.begin() > 300);
}

TEST_CASE("synthetic workload: elements have mean 0, variance 1, no correlation between rows, and magnitudes up to 3.5") {
  const auto workload = make_workload({{.heads = 1, .kv_heads = 1, .head_dim = 128, .value_dim = 1}, 2000, {2000}}, 3, 1);
  const Tensor k = copy_of(workload->whole().k);
  std::vector<float> elements(2000 * 128);
  load(k.bytes.data(), DType::F32, 2000 * 128, elements.data());
  double sum = 0, squares = 0, products = 0, largest = 0;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    sum += elements[i];
    squares += elements[i] * elements[i];
    if (i >= 128) products += elements[i] * elements[i - 128];
    largest = std::max(largest, std::abs(static_cast<double>(elements[i])));
  }
  // A few standard errors of 256000 elements, 1/506 each.
  const double n = static_cast<double>(elements.size());
  CHECK(std::abs(sum / n) < 0.01);
  CHECK(std::abs(squares / n - 1) < 0.01);
  CHECK(std::abs(products / n) < 0.01);
  CHECK(largest < 3.5);
  CHECK(largest > 3);
}

TEST_CASE("synthetic workload: one more key in every step, and the last step does not depend on their number") {
  const auto one = make_workload(kShape, 5, 1);
  for (const int steps : {1, 2, 7, 36}) {
    CAPTURE(steps);
    const auto workload = make_workload(kShape, 5, steps);
    for (int t = 0; t < steps; ++t) {
      const std::int64_t to_come = steps - 1 - t;
      CHECK(workload->lengths(t) == std::vector<std::int64_t>{37 - to_come, std::max<std::int64_t>(0, 30 - to_come)});
    }
    // The lengths before the first step: all positions, or all that are not appended later.
    const std::int64_t n = steps == 1 ? 0 : steps;
    CHECK(workload->n_keys_at_start() == 37 - n);
    CHECK(workload->lengths_at_start() == std::vector<std::int64_t>{37 - n, std::max<std::int64_t>(0, 30 - n)});
    CHECK(copy_of(workload->query(steps - 1)).bytes == copy_of(one->query(0)).bytes);
    if (steps > 1) CHECK(copy_of(workload->query(0)).bytes != copy_of(one->query(0)).bytes);
  }
}

TEST_CASE("file workload: without steps all query positions belong to one step") {
  const Scratch scratch;
  const auto file = SafetensorsFile::open(write_file(scratch, 4));
  const auto workload = open_workload(file, 1);
  CHECK(workload->shape().n_queries == 4);
  CHECK(workload->shape().n_rows() == 8);
  CHECK(workload->shape().value_dim == 2);
  CHECK(workload->lengths(0) == std::vector<std::int64_t>{6});
  CHECK(workload->query(0).shape == Shape{1, 2, 4, 3});
  const Shard shard = *workload->in_place({2, 5});
  CHECK(shard.begin == 2);
  CHECK(shard.end() == 5);
  CHECK(is_part_of(shard, workload->whole()));
  CHECK(row_of(shard.k, 0, 0, 0) == std::vector<double>{6, 7, 8});
  CHECK(is_part_of(workload->keys_and_values(0, {2, 5}), workload->whole(), 0));
  // A file is borrowed, not copied.
  const auto cache = cpu_backend().make_cache(workload->shape(), {0, 6});
  fill_at_start(*cache, *workload, workload->lengths(0));
  CHECK(cache->shard(6, [](std::size_t) { return nullptr; }).k.data == workload->whole().k.data);
}

TEST_CASE("file workload: with steps, step t has query position t and all keys but those of later steps") {
  const Scratch scratch;
  const auto file = SafetensorsFile::open(write_file(scratch, 4, {5}));
  const auto workload = open_workload(file, 4);
  CHECK(workload->shape().n_queries == 1);
  for (int t = 0; t < 4; ++t) {
    CHECK(workload->lengths(t) == std::vector<std::int64_t>{2 + t});
    const TensorView q = workload->query(t);
    CHECK(q.shape == Shape{1, 2, 1, 3});
    CHECK(row_of(q, 0, 1, 0)[0] == 3 * (4 + t));
  }
  // Positions before the first step are borrowed, the others appended.
  const auto cache = cpu_backend().make_cache(workload->shape(), {0, 6});
  fill_at_start(*cache, *workload, workload->lengths_at_start());
  CHECK(cache->longest() == 1);
  std::vector<std::byte> memory;
  for (int t = 0; t < 4; ++t) {
    fill(*cache, *workload, workload->lengths(t));
    const Shard shard = held_by(*cache, memory);
    CHECK(shard.begin == 0);
    CHECK(shard.end() == 2 + t);
    CHECK(is_part_of(shard, workload->whole()));
  }
}

}  // namespace tree_attn::test
