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

}  // namespace tree_attn::test
