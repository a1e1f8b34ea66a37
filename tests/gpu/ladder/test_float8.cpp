// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Keys and values of F8_E4M3 in the library kernels: the bits of the same elements in BF16, however rows lie
/// (eq. (7), section 6.3).
#include "tests/support/device_params.hpp"
#include "tests/support/sweep.hpp"

namespace tree_attn::test::float8_test {
namespace {

/// Elements of any bits, or of any but NaN.
Tensor any_elements(std::mt19937& random, Shape shape, bool has_nan) {
  Tensor tensor({}, shape, DType::F8_E4M3);
  for (std::int64_t i = 0; i < n_elements(shape); ++i) {
    std::uint32_t bits = random() & 0xFF;
    // Most are smaller than 2, so that weights are of many keys.
    if ((bits & 0x7F) >= 0x40 && random() % 8 != 0) bits &= 0xBF;
    if (!has_nan && (bits & 0x7F) == 0x7F) bits ^= 1;
    tensor.bytes.push_back(static_cast<std::byte>(bits));
  }
  return tensor;
}
Tensor widened(const Tensor& narrow) {
  std::vector<float> x(narrow.bytes.size());
  load(narrow.bytes.data(), narrow.dtype, std::ssize(x), x.data());
  return Tensor(x, narrow.shape, DType::BF16);
}
/// Compares every bit with that of the same elements in BF16. @param k, v in rows of at least d elements with something
/// after them @param v_in_keys whether values are the first components of the keys
void check(const Tensor& q, const Tensor& k, const Tensor& v, const Axes& axes, bool v_in_keys) {
  const std::vector<std::int64_t> lengths(static_cast<std::size_t>(axes.batch), axes.n_keys - axes.n_keys / 50);
  const double scale = 1 / std::sqrt(static_cast<double>(axes.head_dim));
  const auto shard_of = [&](const Tensor& keys, const Tensor& values) {
    return DeviceShard(
        q, {keys.view().components(axes.head_dim), (v_in_keys ? keys : values).view().components(axes.value_dim), 0},
        lengths, scale);
  };
  const DeviceShard eight = shard_of(k, v), sixteen = shard_of(widened(k), widened(v));
  CHECK(device::kEqualRuns.n_additions(eight.params, eight.dtype) ==
        device::kEqualRuns.n_additions(sixteen.params, sixteen.dtype));
  const DecodeOutput expected = run_step(device::kEqualRuns, sixteen, {.n_splits = 1});
  for (const int n_splits : {0, 1, 3})
    CHECK(same_output(run_step(device::kEqualRuns, eight, {.n_splits = n_splits}), expected));
}

}  // namespace

/// @tested{eq_7, eq. (7)}
TEST_CASE("float8: library kernels have the bits of the same elements in BF16, with padding and NaN or without") {
  // The GPU in software is slow, and on a card nothing is left to be seen.
  const unsigned one_of = device::kIsHostMemory && takes_all_cases() ? 3 : 17;
  unsigned seed = 9100;
  for (const auto& [d_h, d_v] :
       {std::pair{16, 16}, {64, 64}, {33, 7}, {128, 128}, {80, 112}, {256, 200}, {576, 512}, {300, 270}}) {
    for (const std::int64_t n_keys : {1, 63, 64, 65, 200, 700}) {
      for (const std::int64_t heads : {1, 6, 20, 40}) {
        for (const int kind : {0, 1, 2, 3}) {
          ++seed;
          if (seed % (d_h == 576 && device::kIsHostMemory && !takes_all_cases() ? 11 : one_of) != 0) continue;
          const Axes axes{
              .batch = 2, .heads = 2 * heads, .kv_heads = 2, .head_dim = d_h, .value_dim = d_v, .n_keys = n_keys};
          const bool has_nan = kind == 1 || kind == 2, v_in_keys = kind >= 2 && d_v <= d_h;
          // Rows with something after them, or without.
          const int gap = kind == 2 ? 3 : 0;
          std::mt19937 random(seed);
          Axes rows = axes;
          rows.head_dim += gap, rows.value_dim += gap;
          const Tensor k = any_elements(random, rows.k(), has_nan), v = any_elements(random, rows.v(), has_nan);
          INFO("seed " << seed << ", d_h " << d_h << ", d_v " << d_v << ", N " << n_keys << ", " << heads << " heads, kind "
                       << kind);
          check(normal_tensor(random, axes.q(), DType::BF16), k, v, axes, v_in_keys);
        }
      }
    }
  }
}

TEST_CASE("float8: every element is widened to its BF16, as a key and as a value") {
  constexpr std::int64_t kAll = 256;
  const Axes axes{.head_dim = 64, .value_dim = 64, .n_keys = kAll};
  std::mt19937 random(9050);
  const Tensor q = normal_tensor(random, axes.q(), DType::BF16);
  Tensor rows({}, axes.k(), DType::F8_E4M3);
  for (std::int64_t i = 0; i < n_elements(axes.k()); ++i) {
    const auto bits = static_cast<std::uint32_t>(i % 64 + i / 64 * 5) & 0xFF;
    rows.bytes.push_back(static_cast<std::byte>((bits & 0x7F) == 0x7F ? bits & 0x80 : bits));
  }
  for (const bool v_in_keys : {false, true}) check(q, rows, rows, axes, v_in_keys);
}

TEST_CASE("float8: steps of the ladder refuse it") {
  const auto takes = [](const device::LadderStep& step, std::int64_t d_v) {
    const AttentionShape shape{DType::F8_E4M3, DType::F8_E4M3, 1, 4, 2, 576, d_v};
    return step.refusal(device::params_of(shape, 1, {0, 8}), DType::F8_E4M3).empty();
  };
  CHECK(takes(device::kEqualRuns, 576));
  for (const device::LadderStep* step : device::ladder()) CHECK_MESSAGE(!takes(*step, 64), step->name);
}

}  // namespace tree_attn::test::float8_test
