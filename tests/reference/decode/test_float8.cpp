// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Caches of F8_E4M3 with a scale for each key/value head: bits, bounds, rows that are quantised, and what a scale
/// costs in accuracy.
#include "reference/decode/backend.hpp"
#include "reference/decode/page_table.hpp"
#include "reference/oracle/error_bound.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/float8.hpp"
#include "tests/support/message.hpp"
#include "tests/support/plain_of.hpp"

#include <doctest/doctest.h>

#include <algorithm>

namespace tree_attn::test {
namespace {

constexpr Axes kAxes{.batch = 2, .heads = 6, .kv_heads = 3, .head_dim = 33, .value_dim = 7, .n_queries = 2, .n_keys = 500};

/// z and lse of a cache over all keys, on the CPU; z times the scales.
DecodeOutput output_of(TensorWorkload& workload, const KvScales& scales) {
  const WorkloadShape& shape = workload.shape();
  const auto cache = cpu_backend(2).make_cache(shape, KeyRange{0, workload.n_keys()});
  cache->set_scales(scales);
  fill(*cache, workload, workload.lengths());
  const auto session = cache->open(workload.scale);
  Forest<float> forest = session->decode({workload.query(0), workload.lengths()}).host();
  const Forest<float> plain = plain_of(*cache, {workload.query(0), workload.lengths()}, workload.scale);
  CHECK(std::ranges::equal(forest.states(), plain.states()));
  DecodeOutput output = finish_rows(forest.fold(), shape.n_rows(), shape.value_dim);
  const auto of_head = static_cast<std::size_t>(shape.rows_per_kv_head(shape.n_queries) * shape.value_dim);
  for (std::size_t i = 0; !scales.v.empty() && i < output.out.size(); ++i) output.out[i] *= scales.v[i / of_head];
  return output;
}

}  // namespace

TEST_CASE("float8: scales that are powers of two have the bits of scaled elements in BF16") {
  const Float8Case c = float8_case(8000, kAxes, {-3, 0, 5, -20, 7, 1}, {2, -4, 0, 9, -30, 1});
  const DecodeOutput eight = output_of(*c.eight, c.scales), sixteen = output_of(*c.sixteen, {});
  CHECK(eight.out == sixteen.out);
  CHECK(eight.lse == sixteen.lse);
}

TEST_CASE("float8: with any scales within the bound of the oracle, which is that of scaled elements in F64") {
  Float8Case c = float8_case(8001, kAxes, {0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0});
  c.scales = {{0.3f, 1.7f, 0.01f, 1, 2.2f, 0.77f}, {3, 0.003f, 1e10f, 1, 0.9f, 1e-9f}};
  AttentionOptions options{.lengths = c.eight->lengths(), .key_scale = c.scales.k, .value_scale = c.scales.v};
  const TensorView q = c.eight->query(0), k = c.eight->k(), v = c.eight->v();
  const AttentionResult exact = attention(q, k, v, options);
  const auto scaled = [](const TensorView& view, const std::vector<float>& scales) {
    Tensor wide({}, view.shape, DType::F64);
    for (std::int64_t i = 0; i < view.shape[0] * view.shape[1]; ++i) {
      for (std::int64_t a = 0; a < view.shape[2]; ++a) {
        for (double x : row_of(view, i / view.shape[1], i % view.shape[1], a)) {
          x *= static_cast<double>(scales[static_cast<std::size_t>(i)]);
          const auto* const bytes = reinterpret_cast<const std::byte*>(&x);
          wide.bytes.insert(wide.bytes.end(), bytes, bytes + sizeof x);
        }
      }
    }
    return wide;
  };
  const Tensor k_wide = scaled(k, c.scales.k), v_wide = scaled(v, c.scales.v);
  const AttentionOptions unscaled{.lengths = options.lengths};
  const AttentionResult wide = attention(q, k_wide, v_wide, unscaled);
  CHECK(exact.out == wide.out);
  CHECK(exact.lse == wide.lse);
  ErrorModel model = tree_decode_model(500);
  const ErrorBound bound = error_bound(q, k, v, options, model);
  CHECK(bound.out == error_bound(q, k_wide, v_wide, unscaled, model).out);

  const DecodeOutput ours = output_of(*c.eight, c.scales);
  const Comparison of_out = compare(ours.out, exact.out, bound.out), of_lse = compare(ours.lse, exact.lse, bound.lse);
  CHECK_MESSAGE(of_out.ok, of_out.message);
  CHECK_MESSAGE(of_lse.ok, of_lse.message);

  options.value_scale.pop_back();
  CHECK_INVALID(attention(q, k, v, options), "attention: 5 scales for 2 entries of 3 KV heads");
}

TEST_CASE("float8: appended rows of other types are divided by the scale and rounded, and large ones saturate") {
  const AttentionShape shape{
      .dtype = DType::F8_E4M3, .value_dtype = DType::F8_E4M3, .heads = 2, .kv_heads = 2, .head_dim = 3, .value_dim = 2};
  const auto cache = cpu_backend().make_cache(shape, KeyRange{0, kOpenEnd}, 0);
  cache->set_scales({{0.5f, 3}, {1, 0x1p-6f}});
  const Tensor k({1, 300, -0.3f, 3, 3000, -3}, {1, 2, 1, 3}, DType::BF16),
      v({1.06f, -1e30f, 7, 7.5f}, {1, 2, 1, 2}, DType::F32);
  cache->append(0, k, v);
  std::vector<std::byte> memory;
  const Shard rows = cache->shard(1, [&](std::size_t n) { return (memory.resize(n), memory.data()); });
  using Row = std::vector<double>;
  CHECK(row_of(rows.k, 0, 0, 0) == Row{2, 448, -0.625});
  CHECK(row_of(rows.k, 0, 1, 0) == Row{1, 448, -1});
  CHECK(row_of(rows.v, 0, 0, 0) == Row{1, -448});
  CHECK(row_of(rows.v, 0, 1, 0) == Row{448, 448});
  // What overflows F32 when it is divided saturates too; an infinity becomes NaN.
  float x[] = {1e30f, std::numeric_limits<float>::max(), -1e30f, std::numeric_limits<float>::infinity()};
  std::array<std::byte, 4> bytes;
  quantise(x, 0x1p-100f, DType::F8_E4M3, 4, bytes.data());
  CHECK(bytes == std::array{std::byte{0x7E}, std::byte{0x7E}, std::byte{0xFE}, std::byte{0x7F}});
  // Rows that are borrowed are read in place, and a cache of another type takes its own alone.
  CHECK_INVALID(cache->borrow({k, v}, std::vector<std::int64_t>{1}), "k is BF16, but the cache takes F8_E4M3");
  const auto in_pages = cpu_backend().make_cache(shape, KeyRange{0, kOpenEnd}, 0);
  in_pages->set_scales({{0.5f, 3}, {}});
  in_pages->use_pages({.n_pages = 4});
  in_pages->append(0, k, v);
  CHECK_INVALID(in_pages->set_scales({}), "KvCache::set_scales: the cache is in pages already");
  for (const float scale : {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN(), 0x1p-101f, 0x1p101f})
    CHECK_INVALID(cache->set_scales({{}, {1, scale}}), "2 scales for 1 entries of 2 KV heads; each is from 2^-100 to 2^100");
  CHECK_INVALID(cache->set_scales({{1}, {}}), "1 scales for 1 entries of 2 KV heads; each is from 2^-100 to 2^100");
  CHECK_INVALID(cache->set_scales({}), "KvCache::set_scales: the cache holds 1 rows");
  CHECK_INVALID(cpu_backend().make_cache({}, {0, 64})->set_scales({std::vector<float>(16, 1), {}}), "scales for F32");
}

}  // namespace tree_attn::test
