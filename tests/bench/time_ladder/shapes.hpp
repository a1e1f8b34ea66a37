// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The shapes that are timed.
#pragma once

#include "tests/bench/time_ladder/clocks.cuh"
#include "tests/bench/time_ladder/input.cuh"
#include "tests/bench/time_ladder/program.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

namespace tree_attn::cuda {

/// n as 512, 8k or 1M.
inline std::string short_number(std::int64_t n) {
  if (n % (1 << 20) == 0) return std::to_string(n >> 20) + "M";
  return n % 1024 == 0 ? std::to_string(n >> 10) + "k" : std::to_string(n);
}

/// One sequence.
inline Shape one_sequence(DType dtype, std::int64_t heads, std::int64_t kv_heads, std::int64_t n_keys) {
  return {std::string(name_of(dtype)) + ", " + std::to_string(heads) + "/" + std::to_string(kv_heads) + " heads, " +
              short_number(n_keys) + " keys",
          dtype,
          heads,
          kv_heads,
          {n_keys}};
}

/// 64 sequences of 1k to 32k keys, each by the same factor longer than the one before.
inline Shape skewed_batch(DType dtype, std::int64_t heads, std::int64_t kv_heads) {
  constexpr int kBatch = 64;
  Shape shape = one_sequence(dtype, heads, kv_heads, 1);
  shape.name = shape.name.substr(0, shape.name.rfind(',')) + ", 64 sequences of 1k to 32k keys";
  shape.lengths.clear();
  for (int i = 0; i < kBatch; ++i) shape.lengths.push_back(std::llround(1024 * std::exp2(5.0 * i / (kBatch - 1))));
  return shape;
}

/// The last l queries of one sequence, as a verification of l proposed tokens has them.
inline Shape some_queries(Shape shape, std::int64_t n_queries) {
  shape.n_queries = n_queries;
  shape.name += ", l = " + std::to_string(n_queries);
  return shape;
}

/// A shape whose scores have a soft cap, which most of them stay below.
inline Shape capped(Shape shape) {
  shape.softcap = 8;
  shape.name += ", capped";
  return shape;
}

/// Latent rows as multi-head latent attention stores them: one head of 576 elements, of which the first 512 are the value.
inline Shape latent_rows(std::int64_t heads, std::int64_t n_keys) {
  Shape shape = one_sequence(DType::BF16, heads, 1, n_keys);
  shape.key_dim = 576, shape.value_dim = 512;
  shape.name += ", latent";
  return shape;
}

/// All of them; with `quick` those that take little time; in a rehearsal six.
inline std::vector<Shape> shapes(bool quick) {
  if (is_rehearsal())
    return {one_sequence(DType::BF16, 16, 16, 512),
            one_sequence(DType::F32, 4, 4, 512),
            latent_rows(16, 128),
            some_queries(one_sequence(DType::BF16, 4, 4, 128), 8),
            one_sequence(DType::F8_E4M3, 4, 4, 256),
            capped(one_sequence(DType::BF16, 4, 4, 256))};
  std::vector<Shape> list;
  const auto add = [&](DType dtype, std::int64_t heads, std::int64_t kv_heads, std::initializer_list<int> log2_keys) {
    for (const int log2 : log2_keys)
      if (!quick || log2 <= 13) list.push_back(one_sequence(dtype, heads, kv_heads, std::int64_t{1} << log2));
  };
  // 16k and 32k keys are lengths for which the goals against other libraries differ.
  add(DType::BF16, 16, 16, {9, 13, 14, 15, 16, 20});
  add(DType::BF16, 32, 8, {9, 13, 14, 15, 16, 20});
  add(DType::BF16, 8, 8, {9, 13, 16, 20});
  add(DType::F32, 16, 16, {9, 13, 16, 20});
  add(DType::F8_E4M3, 16, 16, {13, 16}), add(DType::F8_E4M3, 32, 8, {13, 16});
  for (const int log2 : {13, 16})
    if (!quick || log2 <= 13) list.push_back(capped(one_sequence(DType::BF16, 32, 8, std::int64_t{1} << log2)));
  for (const std::int64_t heads : {16, 128}) {
    for (const int log2 : {9, 13, 16})
      if (!quick || log2 <= 13) list.push_back(latent_rows(heads, std::int64_t{1} << log2));
  }
  if (!quick) {
    for (const int log2 : {13, 16}) {
      list.push_back(some_queries(one_sequence(DType::BF16, 16, 16, std::int64_t{1} << log2), 8));
      list.push_back(some_queries(one_sequence(DType::BF16, 32, 8, std::int64_t{1} << log2), 8));
    }
  }
  if (!quick) list.push_back(skewed_batch(DType::BF16, 16, 16)), list.push_back(skewed_batch(DType::BF16, 32, 8));
  return list;
}

/// Shapes that the options --quick and --shape NAME;NAME select. @throws WrongOption if a name is that of no shape
inline std::vector<Shape> shapes_of(const Options& asked) {
  const std::vector<Shape> all = shapes(asked.has("--quick"));
  if (!asked.has("--shape")) return all;
  std::vector<Shape> found;
  std::istringstream names(asked.text("--shape"));
  for (std::string name; std::getline(names, name, ';');) {
    const auto at = std::ranges::find(all, name, &Shape::name);
    if (at == all.end()) throw WrongOption("no shape is named " + name);
    found.push_back(*at);
  }
  return found;
}

}  // namespace tree_attn::cuda
