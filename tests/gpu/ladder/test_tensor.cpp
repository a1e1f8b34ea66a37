// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The library kernel on tensor cores (eq. (7)): as exact as scalar kernels, in numbers, in bits, and at the edges.
#include "tree_attn/tests/support/device_params.hpp"
#if !defined(TREE_ATTN_FOR_CUDA)
#include "tree_attn/gpu/platform/emulator/settings.hpp"
#endif

#include <bit>

namespace tree_attn::test::tensor_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

/// The longest chain of additions: the keys of a leaf in three parts each, then the tree.
double n_additions(const TensorWorkload& workload) {
  return 3 * 64 + 8 + tree_decode_model(std::max<std::int64_t>(1, workload.n_keys())).n_additions;
}

std::string error_of(TensorWorkload& workload, const DecodeOutput& output) {
  return against_oracle(workload, output, n_additions(workload));
}

DecodeOutput run(TensorWorkload& workload, int n_splits = 0) {
  return run_step(device::kEqualRuns, workload, {.n_splits = n_splits});
}

const DType kDTypes[] = {DType::F16, DType::BF16};
/// Queries of which some share a lane, in a tile that is not full.
const std::int64_t kGroups[] = {1, 2, 6};
/// Types with the length of their rows: queries have a column of the product each, and two of it.
const std::pair<DType, std::int64_t> kTiles[] = {{DType::F16, 40}, {DType::F16, 136}, {DType::BF16, 40}};

Tensor zeros(const Shape& shape, DType dtype) {
  return Tensor(std::vector<float>(static_cast<std::size_t>(n_elements(shape)), 0), shape, dtype);
}

}  // namespace

TEST_CASE("tensor: small weights keep their bits") {
  // Keys in falling order of their scores, and values that only one of them has: what it contributes is not lost among
  // others.
  for (const auto& [dtype, d] : kTiles) {
    for (const std::int64_t heads : kGroups) {
      for (const float scale_of_value : {1.0f, 6e4f, 1e-3f}) {
        const Axes axes{.heads = heads, .kv_heads = 1, .head_dim = d, .value_dim = 40, .n_keys = 40, .dtype = dtype};
        Tensor q = zeros(axes.q(), dtype), k = zeros(axes.k(), dtype), v = zeros(axes.v(), dtype);
        for (std::int64_t h = 0; h < heads; ++h) q.set(0, h, 0, 0, 1 - 0.1875f * static_cast<float>(h % 2));
        for (std::int64_t a = 0; a < 40; ++a)
          k.set(0, 0, a, 0, -0.703125f * static_cast<float>(a)), v.set(0, 0, a, a, scale_of_value);
        const auto workload = workload_of(std::move(q), std::move(k), std::move(v), {}, 1.0);
        CAPTURE(scale_of_value);
        CHECK(against_oracle(*workload, run(*workload)) == "");
      }
    }
  }
}

TEST_CASE("tensor: a weight has 24 bits") {
  // Two keys: the first weighs 1 and its value is 0, so that z = w / (1 + w) with the weight w of the second.
  for (const auto& [dtype, d] : kTiles) {
    for (const std::int64_t heads : kGroups) {
      for (int i = 1; i < 40; ++i) {
        const Axes axes{.heads = heads, .kv_heads = 1, .head_dim = d, .value_dim = 8, .n_keys = 2, .dtype = dtype};
        Tensor q = zeros(axes.q(), dtype), k = zeros(axes.k(), dtype), v = zeros(axes.v(), dtype);
        for (std::int64_t h = 0; h < heads; ++h) q.set(0, h, 0, 0, 1 - 0.25f * static_cast<float>(h % 2));
        k.set(0, 0, 1, 0, -0.3125f * static_cast<float>(i)), v.set(0, 0, 1, 0, 1);
        const auto workload = workload_of(std::move(q), std::move(k), std::move(v), {}, 1.0);
        const DecodeOutput output = run(*workload);
        for (std::int64_t h = 0; h < heads; ++h) {
          const float score = (1 - 0.25f * static_cast<float>(h % 2)) * -0.3125f * static_cast<float>(i);
          const float w = std::exp2(score * static_cast<float>(kLog2E)), z = w / (1 + w);
          CAPTURE(i);
          CHECK(std::abs(output.out[static_cast<std::size_t>(h) * 8] - z) <= 6 * 0x1p-24f * z);
        }
      }
    }
  }
}

TEST_CASE("tensor: copies by tensor maps, by cp.async and by plain loads leave the same bits") {
  unsigned seed = 7180;
  for (const DType dtype : kDTypes) {
    for (const std::int64_t d : {64, 96, 128, 256}) {
      for (const std::int64_t group : {3, 7}) {
        const Axes axes{
            .batch = 3, .heads = 2 * group, .kv_heads = 2, .head_dim = d, .value_dim = d, .n_keys = 512, .dtype = dtype};
        const auto workload = normal_workload(seed++, axes, std::vector<std::int64_t>{384, 131, 512});
        INFO(name_of(dtype) << ", d " << d << ", group " << group << ", seed " << seed - 1);
        // Rings of six tiles, or of five where a block has little memory, are filled through tensor maps, of three by
        // cp.async.
        const auto n_stages = [&] {
          const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
          return device::kEqualRuns.plan(shard.params, dtype, {}).n_stages;
        };
        const DecodeOutput by_async = [&] {
#if !defined(TREE_ATTN_FOR_CUDA)
          const emulated::SettingsScope scope({.major = 8});
          if (d == 64) CHECK(n_stages() == 3);
#endif
          return run(*workload, 2);
        }();
        if (d == 64 && device::device().major >= 9) CHECK(n_stages() > 3);
        CHECK(same_output(run(*workload, 2), by_async));
        CHECK(same_output(run_step(device::kEqualRuns, *workload), by_async));
        CHECK(same_output(run(*misaligned(*workload, 2), 3), by_async));
        CHECK(same_output(run_step(device::kEqualRuns, *misaligned(*workload, 2), {.n_splits = 3}), by_async));
      }
    }
  }
}

// A tensor core aligns products by the exponents of their factors, and has 24 bits from there on: of a factor that is
// subnormal in F16 it keeps fewer. So an H200 has 2^-24 within 141 ulp.
TEST_CASE("tensor: one key gives its value within two ulp, if that is a normal number of its type") {
  for (const DType dtype : kDTypes) {
    const double least_normal = dtype == DType::F16 ? 0x1p-14 : 0x1p-126;
    // A leaf and more, and less than a leaf: a few subtrees, of which all but the first hold no key. Values that are loaded,
    // and values that could be copied.
    for (const auto& [n_keys, d_v] : {std::pair{70, 6}, {40, 6}, {70, 64}}) {
      for (const std::int64_t heads : kGroups) {
        const Axes axes{.heads = heads, .kv_heads = 1, .head_dim = 64, .value_dim = d_v, .n_keys = n_keys, .dtype = dtype};
        std::mt19937 random(7400);
        Tensor v = normal_tensor(random, axes.v(), dtype);
        const float special[] = {-0.0f, 65504, 0x1p-24f, kInf, kNaN};
        // If values are copied, finite ones alone: others are loaded in a second walk.
        const std::int64_t n_special = d_v == 64 ? 3 : 5;
        for (std::int64_t c = 0; c < n_special; ++c) v.set(0, 0, 0, c, special[c]);
        const auto workload = workload_of(normal_tensor(random, axes.q(), dtype), normal_tensor(random, axes.k(), dtype), v,
                                          std::vector<std::int64_t>{1});
        const std::vector<double> want = row_of(v.view(), 0, 0, 0);
        const DecodeOutput output = run(*workload);
        const auto n = static_cast<std::size_t>(d_v);
        double worst = 0;
        for (std::size_t r = 0; r < static_cast<std::size_t>(heads); ++r) {
          for (std::size_t c = 0; c < n; ++c) {
            const float z = output.out[r * n + c];
            if (c == 4 && n_special > 4)
              CHECK(std::isnan(z));
            else
              worst =
                  std::max(worst, z == want[c] ? 0.0 : std::abs(z - want[c]) / std::max(std::abs(want[c]), least_normal));
          }
        }
        CHECK(error_of(*workload, output) == "");
        CHECK(worst * 0x1p23 <= 2);
      }
    }
  }
}

TEST_CASE("tensor: states of padding are not stored") {
  // Floats that a kernel stores for its forests, by the queries of a tile.
  const auto n_stored = [](std::int64_t heads, DType dtype, std::int64_t d) {
    const auto workload =
        normal_workload(7900, {.heads = heads, .kv_heads = 1, .head_dim = d, .value_dim = d, .n_keys = 300, .dtype = dtype});
    const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
    const device::LaunchPlan plan = device::kEqualRuns.plan(shard.params, dtype, {.n_splits = 2});
    device::DeviceBuffer<float> floats(plan.n_floats), out(heads * d), lse(heads);
    device::DeviceBuffer<unsigned> counters(plan.n_counters);
    counters.fill(0), floats.fill(0xFF);  // each byte: not a number, until it is stored
    device::kEqualRuns.run(shard.params, dtype, {.out = out.data(), .lse = lse.data()}, plan,
                           {floats.data(), counters.data()}, device::Stream{});
    const std::vector<float> stored = floats.download();
    return std::count_if(stored.begin(), stored.end(), [](float x) { return x == x; });
  };
  for (const auto& [dtype, d] : kTiles) {
    INFO(name_of(dtype) << ", rows of " << d);
    const auto of_one = n_stored(1, dtype, d);
    CHECK(of_one > 0);
    for (const std::int64_t heads : {2, 3, 4}) CHECK(n_stored(heads, dtype, d) == heads * of_one);
  }
}

TEST_CASE("tensor: refuses what it cannot keep exact") {
  const auto refusal = [](const Axes& axes) {
    const auto workload = normal_workload(7800, axes);
    const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
    return device::kTensor.refusal(shard.params, shard.dtype);
  };
  CHECK(refusal({.dtype = DType::F32}) == "F32 storage: no tensor core keeps its bits");
  CHECK(refusal({.dtype = DType::F64}) == "F64 storage");
  CHECK(refusal({.value_dim = 513, .dtype = DType::F16}) == "d_h 16, d_v 513: more than 512");
  CHECK(refusal({.dtype = DType::F16}) == "");
}

}  // namespace tree_attn::test::tensor_test
