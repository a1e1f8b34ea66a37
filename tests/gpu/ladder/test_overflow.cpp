// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What is finite by the formula is finite in every step, though a sum on the way is beyond F32 (section 5).
#include "tests/support/device_params.hpp"

namespace tree_attn::test {
namespace {

constexpr std::int64_t kHeads = 4;

/// Four query heads over `kv_heads`: one is a group, which tensor cores take in 16 bits; four leave every query to a
/// sub-warp.
Axes axes_of(DType dtype, std::int64_t kv_heads, std::int64_t n_keys) {
  return {
      .batch = 2, .heads = kHeads, .kv_heads = kv_heads, .head_dim = 16, .value_dim = 16, .n_keys = n_keys, .dtype = dtype};
}

/// Runs every step that takes the problem: all finite, and within the bound.
void check_finite(TensorWorkload& workload) {
  const DeviceShard shard(workload.query(0), workload.whole(), workload.lengths(), workload.scale);
  for (const device::LadderStep* step : device::ladder()) {
    if (step->refusal(shard.params, shard.dtype) != "") continue;
    CAPTURE(std::string(step->name));
    const DecodeOutput output = run_step(*step, workload, {.n_splits = 2});
    CHECK(std::all_of(output.out.begin(), output.out.end(), [](float z) { return std::isfinite(z); }));
    CHECK(against_oracle(workload, output, longest_chain(*step, shard)) == "");
  }
}

}  // namespace

/// @tested{alg_3, Alg. 3}
TEST_CASE("overflow on the device: values whose sum is beyond F32 have their average, in every step") {
  // The largest BF16 is 3.39e38.
  constexpr float kLargest = 0x1.FEp127f;
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const std::int64_t kv_heads : {std::int64_t{1}, kHeads}) {
      for (const std::int64_t n_keys : {2, 130}) {
        for (const bool cancels : {false, true}) {
          INFO(name_of(dtype) << ", " << kv_heads << " kv heads, " << n_keys << " keys, cancels " << cancels);
          const Axes axes = axes_of(dtype, kv_heads, n_keys);
          std::mt19937 random(6300);
          Tensor q = normal_tensor(random, axes.q(), dtype), k = normal_tensor(random, axes.k(), dtype),
                 v = normal_tensor(random, axes.v(), dtype);
          // In batch entry 1, in two components: entry 0 is as it was.
          for (std::int64_t h = 0; h < kv_heads; ++h) {
            for (std::int64_t a = 0; a < n_keys; ++a) {
              v.set(1, h, a, 2, cancels && a < n_keys / 2 ? -kLargest : kLargest);
              v.set(1, h, a, 9, 0x1p127f);
            }
          }
          const auto workload = workload_of(std::move(q), std::move(k), std::move(v));
          check_finite(*workload);
        }
      }
    }
  }
}

/// @tested{eq_7, eq. (7)}
TEST_CASE("overflow on the device: products q.k beyond F32 whose scores are not, in every step") {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const std::int64_t kv_heads : {std::int64_t{1}, kHeads}) {
      for (const double scale : {1e-38, -3e-39}) {
        INFO(name_of(dtype) << ", " << kv_heads << " kv heads, scale " << scale);
        const Axes axes = axes_of(dtype, kv_heads, 70);
        std::mt19937 random(6400);
        Tensor q = normal_tensor(random, axes.q(), dtype, 1e19f), k = normal_tensor(random, axes.k(), dtype, 1e19f);
        const auto workload = workload_of(std::move(q), std::move(k), normal_tensor(random, axes.v(), dtype), {}, scale);
        check_finite(*workload);
      }
    }
  }
}

/// A power of two passes through every sum, and through the three parts of a weight on tensor cores.
TEST_CASE("overflow on the device: a lift changes no bit of z where nothing overflows, in every step") {
  for (const DType dtype : {DType::F32, DType::BF16, DType::F16}) {
    for (const std::int64_t kv_heads : {std::int64_t{1}, kHeads}) {
      const auto workload = normal_workload(6500, axes_of(dtype, kv_heads, 150), std::vector<std::int64_t>{150, 77});
      const DeviceShard plain(workload->query(0), workload->whole(), workload->lengths(), workload->scale),
          lifted(workload->query(0), workload->whole(), workload->lengths(), workload->scale, kLift);
      CHECK(lifted.params.lift == (dtype == DType::F16 ? 0 : kLift));
      for (const device::LadderStep* step : device::ladder()) {
        if (step->refusal(plain.params, plain.dtype) != "") continue;
        INFO(std::string(step->name) << ", " << name_of(dtype) << ", " << kv_heads << " kv heads");
        const DecodeOutput a = run_step(*step, plain), b = run_step(*step, lifted);
        CHECK(a.out == b.out);
        CHECK(compare(a.lse, b.lse, 1e-5).ok);
      }
    }
  }
}

}  // namespace tree_attn::test
