// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief An Attention that is moved; masks and soft caps over ranks.
#include "distributed/interface/attention.hpp"
#include "distributed/transport/thread_transport.hpp"
#include "tests/support/same_bits.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace tree_attn::test {
namespace {

constexpr std::int64_t kKeys = 300;
constexpr AttentionShape kShape{.batch = 1, .heads = 4, .kv_heads = 2, .head_dim = 8, .value_dim = 6};

/// Queries, keys and values of one sequence, and a mask of its first keys and two more.
struct Rows {
  std::vector<float> q, k, v;
  std::vector<std::uint8_t> mask;
  Rows() {
    std::mt19937 random(71);
    std::normal_distribution<float> normal;
    for (auto [x, n] : {std::pair{&q, 64}, {&k, 16 * static_cast<int>(kKeys) + 32}, {&v, 12 * static_cast<int>(kKeys) + 24}})
      for (int i = 0; i < n; ++i) x->push_back(normal(random));
    for (std::int64_t i = 0; i < 2 * (kKeys + 2); ++i) mask.push_back(static_cast<std::uint8_t>(random() % 2));
  }
  TensorView queries() const { return TensorView::dense(q.data(), DType::F32, {1, 4, 2, 8}); }
  TensorView keys(std::int64_t n) const { return TensorView::dense(k.data(), DType::F32, {1, 2, n, 8}); }
  TensorView values(std::int64_t n) const { return TensorView::dense(v.data(), DType::F32, {1, 2, n, 6}); }
  Mask masked(std::int64_t n) const { return Mask::dense(mask.data(), true, {1, 1, 2, n}); }
};

std::vector<float> outputs(Attention& layer, const Rows& rows, std::int64_t n = kKeys) {
  const OutputView output = layer.step(rows.queries(), {.causal = true}, {}, rows.masked(n), 3);
  std::vector<float> all(output.out.begin(), output.out.end());
  all.insert(all.end(), output.lse.begin(), output.lse.end());
  return all;
}

}  // namespace

TEST_CASE("facade: an Attention that is moved goes on where it was, and in a vector too") {
  const Rows rows;
  Attention first(kShape);
  first.append(0, rows.keys(kKeys), rows.values(kKeys));
  const std::vector<float> expected = outputs(first, rows);
  Attention second(std::move(first));
  CHECK(same_bits(outputs(second, rows), expected));
  std::vector<Attention> all;
  for (int i = 0; i < 3; ++i) all.emplace_back(kShape);
  all[1] = std::move(second);
  all.erase(all.begin());
  CHECK(same_bits(outputs(all[0], rows), expected));
  all[0].append(0, rows.keys(2), rows.values(2));
  CHECK(all[0].lengths()[0] == kKeys + 2);
  Attention& self = all[0];
  all[0] = std::move(self);
  CHECK(all[0].lengths()[0] == kKeys + 2);
}

TEST_CASE("facade: a mask and a soft cap over ranks have the bits of one rank") {
  const Rows rows;
  Attention alone(kShape);
  alone.append(0, rows.keys(kKeys), rows.values(kKeys));
  const std::vector<float> expected = outputs(alone, rows);
  const OutputView plain = alone.step(rows.queries(), {.causal = true});
  CHECK_FALSE(std::ranges::equal(plain.out, std::span(expected).first(plain.out.size())));
  run_threads(Topology::pretend(3, 2), 20, [&](const ThreadRanks& ranks, ThreadTransport&) {
    Attention layer(ranks, kShape);
    layer.append(0, rows.keys(kKeys), rows.values(kKeys));
    CHECK(same_bits(outputs(layer, rows), expected));
    layer.start(rows.queries(), {.causal = true}, {}, rows.masked(kKeys), 3);
    CHECK(std::ranges::equal(layer.finish().out, std::span(expected).first(plain.out.size())));
  });
}

TEST_CASE("facade: values have the type of the keys unless it is given") {
  CHECK(AttentionShape{.dtype = DType::BF16}.value_dtype == DType::BF16);
  CHECK(AttentionShape{.dtype = DType::BF16, .value_dtype = DType::F16}.value_dtype == DType::F16);
  CHECK(AttentionShape{}.value_dtype == DType::F32);
}

}  // namespace tree_attn::test
