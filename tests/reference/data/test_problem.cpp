// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Problems: made-up numbers do not depend on who asks for them, caches grow by a key a step, files say what is
/// wrong.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "distributed/decoders/decoder.hpp"
#include "reference/data/problem.hpp"
#include "tests/support/tensor_files.hpp"
#include "tests/support/tensor_problem.hpp"

namespace tree_attn::test {
namespace {

const ProblemShape kShape{Storage::F32, 2, 4, 2, 5, 3, 1, 37, {37, 30}};

/// Whether a part holds what the whole holds at its positions.
bool is_part_of(const Shard& part, const Shard& whole) {
  return copy_of(part.k).bytes == copy_of(whole.k.positions(part.begin, part.end())).bytes &&
         copy_of(part.v).bytes == copy_of(whole.v.positions(part.begin, part.end())).bytes;
}

/// A file with q [1, 2, l, 3], k [1, 1, 6, 3], v [1, 1, 6, 2] whose numbers count up, and lengths if given.
std::string write_file(const Scratch& scratch, std::int64_t l, const std::vector<std::int64_t>& lengths = {},
                       Storage v_storage = Storage::F32) {
  const auto counting = [](Shape shape, Storage storage = Storage::F32) {
    std::vector<float> numbers(static_cast<std::size_t>(n_elements(shape)));
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
    return Tensor(numbers, shape, storage);
  };
  const Tensor q = counting({1, 2, l, 3}), k = counting({1, 1, 6, 3}), v = counting({1, 1, 6, 2}, v_storage);
  SafetensorsWriter writer;
  writer.add("q", name_of(q.storage), q.shape, q.bytes);
  writer.add("k", name_of(k.storage), k.shape, k.bytes);
  writer.add("v", name_of(v.storage), v.shape, v.bytes);
  const std::int64_t n_lengths[] = {static_cast<std::int64_t>(lengths.size())};
  if (!lengths.empty()) writer.add("lengths", "I64", n_lengths, std::as_bytes(std::span(lengths)));
  const std::string path = scratch.path("problem.safetensors");
  writer.write(path);
  return path;
}

std::string refusal_of(const std::string& path, int steps) {
  return refusal(path, [steps](const SafetensorsFile& file) { open_problem(file, steps); });
}

}  // namespace

TEST_CASE("made-up problem: the same numbers for every cut, storage row by storage row") {
  const auto problem = make_problem(kShape, 5, 1);
  const Shard whole = problem->whole();
  CHECK(whole.end() == 37);
  for (int p = 1; p <= 8; ++p) {
    for (const Run& run : even_runs(37, p, 4)) {
      // One that has seen another run before, and a fresh one.
      CHECK(is_part_of(problem->shard(run, 0), whole));
      CHECK(is_part_of(make_problem(kShape, 5, 1)->shard(run, 0), whole));
    }
  }
}

TEST_CASE("made-up problem: the seed decides, and heads, positions and tensors differ") {
  const auto problem = make_problem(kShape, 5, 1), again = make_problem(kShape, 5, 1), other = make_problem(kShape, 6, 1);
  const Tensor k = copy_of(problem->whole().k), v = copy_of(problem->whole().v), q = copy_of(problem->query(0));
  CHECK(k.bytes == copy_of(again->whole().k).bytes);
  CHECK(q.bytes == copy_of(again->query(0)).bytes);
  CHECK(k.bytes != copy_of(other->whole().k).bytes);
  CHECK(q.bytes != copy_of(other->query(0)).bytes);
  // Any two rows differ in their first number: 2 * 2 * 37 of k, as many of v, 8 of q.
  std::vector<double> first;
  for (const Tensor* tensor : {&q, &k, &v}) {
    for (std::int64_t i = 0; i < 2; ++i) {
      for (std::int64_t h = 0; h < tensor->shape[1]; ++h) {
        for (std::int64_t a = 0; a < tensor->shape[2]; ++a) first.push_back(row_of(*tensor, i, h, a)[0]);
      }
    }
  }
  std::sort(first.begin(), first.end());
  // 304 numbers of 18 bits: equal ones by chance are rare, equal ones by mistake come in dozens.
  CHECK(std::unique(first.begin(), first.end()) - first.begin() > 300);
}

TEST_CASE("made-up problem: numbers have mean 0, variance 1, no correlation from row to row, and end at 3.5") {
  const auto problem = make_problem({Storage::F32, 1, 1, 1, 128, 1, 1, 2000, {2000}}, 3, 1);
  const Tensor k = copy_of(problem->whole().k);
  std::vector<float> numbers(2000 * 128);
  load(k.bytes.data(), Storage::F32, 2000 * 128, numbers.data());
  double sum = 0, squares = 0, products = 0, largest = 0;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    sum += numbers[i];
    squares += numbers[i] * numbers[i];
    if (i >= 128) products += numbers[i] * numbers[i - 128];
    largest = std::max(largest, std::abs(static_cast<double>(numbers[i])));
  }
  // A few standard errors of 256000 numbers, 1/506 each.
  const double n = static_cast<double>(numbers.size());
  CHECK(std::abs(sum / n) < 0.01);
  CHECK(std::abs(squares / n - 1) < 0.01);
  CHECK(std::abs(products / n) < 0.01);
  CHECK(largest < 3.5);
  CHECK(largest > 3);
}

TEST_CASE("made-up problem: stored types hold the same numbers, rounded") {
  ProblemShape shape = kShape;
  const auto exact = make_problem(shape, 5, 1);
  for (const Storage storage : {Storage::F16, Storage::BF16}) {
    shape.storage = storage;
    const auto rounded = make_problem(shape, 5, 1);
    std::vector<float> numbers(5);
    load_row(exact->whole().k, 1, 1, 36, numbers.data());
    const std::vector<double> stored = row_of(rounded->whole().k, 1, 1, 36);
    for (std::size_t i = 0; i < 5; ++i)
      CHECK(std::abs(stored[i] - numbers[i]) <= unit_roundoff(storage) * std::abs(numbers[i]));
  }
}

TEST_CASE("made-up problem: a cache grows by a key a step, and the last step is the same whatever their number") {
  const auto one = make_problem(kShape, 5, 1);
  for (const int steps : {1, 2, 7, 36}) {
    CAPTURE(steps);
    const auto problem = make_problem(kShape, 5, steps);
    for (int t = 0; t < steps; ++t) {
      const std::int64_t to_come = steps - 1 - t;
      CHECK(problem->n_keys(t) == 37 - to_come);
      CHECK(problem->lengths(t) == std::vector<std::int64_t>{37 - to_come, std::max<std::int64_t>(0, 30 - to_come)});
      // The last key is appended by the rank that holds the end of the sequence; the other ranks see no change.
      const Shard first = problem->shard({0, 20}, t);
      CHECK(first.end() == std::min<std::int64_t>(20, 37 - to_come));
      CHECK(is_part_of(first, one->whole()));
    }
    CHECK(copy_of(problem->query(steps - 1)).bytes == copy_of(one->query(0)).bytes);
    if (steps > 1) CHECK(copy_of(problem->query(0)).bytes != copy_of(one->query(0)).bytes);

    // The rank at the end: its run fills up step by step, and may be taken back to the first step and filled again.
    for (int repetition = 0; repetition < 2; ++repetition) {
      for (int t = 0; t < steps; ++t) {
        const Shard last = problem->shard({20, 37}, t);
        CHECK(last.end() == std::max<std::int64_t>(20, 37 - (steps - 1 - t)));
        CHECK(is_part_of(last, one->whole()));
      }
    }
  }
}

TEST_CASE("file problem: without steps every query position is one query of the same step") {
  const Scratch scratch;
  const auto file = SafetensorsFile::open(write_file(scratch, 4));
  const auto problem = open_problem(file, 1);
  CHECK(problem->shape().n_queries == 4);
  CHECK(problem->shape().n_rows() == 8);
  CHECK(problem->shape().value_dim == 2);
  CHECK(problem->lengths(0) == std::vector<std::int64_t>{6});
  CHECK(problem->query(0).shape == Shape{1, 2, 4, 3});
  const Shard shard = problem->shard({2, 5}, 0);
  CHECK(shard.begin == 2);
  CHECK(shard.end() == 5);
  CHECK(is_part_of(shard, problem->whole()));
  CHECK(row_of(shard.k, 0, 0, 0) == std::vector<double>{6, 7, 8});
}

TEST_CASE("file problem: with steps, step t has query position t and all keys but those still to come") {
  const Scratch scratch;
  const auto file = SafetensorsFile::open(write_file(scratch, 4, {5}));
  const auto problem = open_problem(file, 4);
  CHECK(problem->shape().n_queries == 1);
  for (int t = 0; t < 4; ++t) {
    CHECK(problem->lengths(t) == std::vector<std::int64_t>{2 + t});
    CHECK(problem->n_keys(t) == 3 + t);
    const TensorView q = problem->query(t);
    CHECK(q.shape == Shape{1, 2, 1, 3});
    CHECK(row_of(q, 0, 1, 0)[0] == 3 * (4 + t));
    // Runs are those of the end; what has not arrived is not there.
    const Shard shard = problem->shard({2, 6}, t);
    CHECK(shard.begin == 2);
    CHECK(shard.end() == 3 + t);
    CHECK(is_part_of(shard, problem->whole()));
  }
}

TEST_CASE("file problem: what does not belong together is refused") {
  const Scratch scratch;
  const auto check = [&](const std::string& path, int steps, const std::string& reason) {
    check_refused(path, refusal_of(path, steps), reason);
  };
  check(write_file(scratch, 4), 3, "--steps 3 needs as many query positions, q has l = 4");
  check(write_file(scratch, 1, {7}), 1, "length 7 of batch entry 0 is not in [0, 6]");
  check(write_file(scratch, 1, {-1}), 1, "length -1 of batch entry 0 is not in [0, 6]");
  check(write_file(scratch, 1, {6, 6}), 1, "tensor \"lengths\" must be I64 of shape [1]");
  check(write_file(scratch, 1, {}, Storage::F16), 1, "they must have one type");
  CHECK(refusal_of(write_file(scratch, 1, {0}), 1) == "");
}

}  // namespace tree_attn::test
