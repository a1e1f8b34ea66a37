// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The library kernel on tensor cores (eq. (7)): as exact as scalar kernels, in numbers, in bits, and at the edges.
#include "tests/support/device_params.hpp"
#if !defined(TREE_ATTN_FOR_CUDA)
#include "gpu/emulator/settings.hpp"
#endif

#include <numeric>

namespace tree_attn::test::tensor_test {
namespace {

DecodeOutput run(TensorWorkload& workload, int n_splits = 0) {
  return run_step(device::kEqualRuns, workload, {.n_splits = n_splits});
}

const DType kDTypes[] = {DType::F16, DType::BF16};
/// Queries of which some share a lane, in a tile that is not full.
const std::int64_t kGroups[] = {1, 2, 6};
/// Types with the length of their rows.
const std::pair<DType, std::int64_t> kTiles[] = {{DType::F16, 40}, {DType::F16, 136}, {DType::BF16, 40}};

Tensor zeros(const Shape& shape, DType dtype) {
  return Tensor(std::vector<float>(static_cast<std::size_t>(n_elements(shape)), 0), shape, dtype);
}

}  // namespace

TEST_CASE("tensor: a weight has 24 bits, and is not lost among larger ones") {
  // Keys in falling order of their scores, and values that only one of them has: what it contributes is its weight.
  constexpr std::int64_t kKeys = 40;
  for (const auto& [dtype, d] : kTiles) {
    for (const std::int64_t heads : kGroups) {
      for (const auto& [distance, value] :
           {std::pair{0.3125f, 1.0f}, {0.3125f, 57344.0f}, {0.3125f, 0x1p-10f}, {0.75f, 1.0f}}) {
        const Axes axes{.heads = heads, .kv_heads = 1, .head_dim = d, .value_dim = kKeys, .n_keys = kKeys, .dtype = dtype};
        Tensor q = zeros(axes.q(), dtype), k = zeros(axes.k(), dtype), v = zeros(axes.v(), dtype);
        for (std::int64_t h = 0; h < heads; ++h) q.set(0, h, 0, 0, 1 - 0.25f * static_cast<float>(h % 2));
        for (std::int64_t a = 0; a < kKeys; ++a)
          k.set(0, 0, a, 0, -distance * static_cast<float>(a)), v.set(0, 0, a, a, value);
        const auto workload = workload_of(std::move(q), std::move(k), std::move(v), {}, 1.0);
        const DecodeOutput output = run(*workload);
        INFO(name_of(dtype) << ", d " << d << ", heads " << heads << ", distance " << distance << ", value " << value);
        CHECK(against_oracle(*workload, output) == "");
        for (std::int64_t h = 0; h < heads && distance < 0.5f; ++h) {
          std::vector<double> weights;
          for (std::int64_t a = 0; a < kKeys; ++a) {
            const float score = (1 - 0.25f * static_cast<float>(h % 2)) * -distance * static_cast<float>(a);
            weights.push_back(std::exp2(double{score} * double{static_cast<float>(kLog2E)}));
          }
          const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
          for (std::int64_t a = 0; a < kKeys; ++a) {
            const double z = value * weights[static_cast<std::size_t>(a)] / sum;
            CHECK(std::abs(output.out[static_cast<std::size_t>(h * kKeys + a)] - z) <= 6 * 0x1p-24 * z);
          }
        }
      }
    }
  }
}

TEST_CASE("tensor: copies by tensor maps and by cp.async leave the bits of step 6") {
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
        const auto check_bits = [&] {
          const DecodeOutput want = run_step(device::kTensor, *workload);
          CHECK(same_output(run(*workload, 2), want));
          CHECK(same_output(run(*workload), want));
        };
        if (d == 64 && device::device().major >= 9) CHECK(n_stages() > 3);
        check_bits();
#if !defined(TREE_ATTN_FOR_CUDA)
        // Its tensor cores add otherwise: bits are its own.
        const emulated::SettingsScope scope({.major = 8});
        if (d == 64) CHECK(n_stages() == 3);
        check_bits();
#endif
      }
    }
  }
}

// A tensor core aligns products by the exponents of their factors, and has 24 bits from there on: of a factor that is
// subnormal in F16 it keeps fewer. So an H200 has 2^-24 within 141 ulp.
TEST_CASE("tensor: one key gives its value within two ulp, if that is a normal number of its type") {
  for (const DType dtype : kDTypes) {
    const double least_normal = dtype == DType::F16 ? 0x1p-14 : 0x1p-126;
    // A leaf and more, and less than a leaf: a few subtrees, of which all but the first hold no key. Values with
    // padding, and without.
    for (const auto& [n_keys, d_v] : {std::pair{70, 6}, {40, 6}, {70, 64}}) {
      for (const std::int64_t heads : kGroups) {
        const Axes axes{.heads = heads, .kv_heads = 1, .head_dim = 64, .value_dim = d_v, .n_keys = n_keys, .dtype = dtype};
        std::mt19937 random(7400);
        Tensor v = normal_tensor(random, axes.v(), dtype);
        v.set(0, 0, 0, 0, -0.0f), v.set(0, 0, 0, 1, 65504), v.set(0, 0, 0, 2, 0x1p-24f);
        const auto workload = workload_of(normal_tensor(random, axes.q(), dtype), normal_tensor(random, axes.k(), dtype), v,
                                          std::vector<std::int64_t>{1});
        const std::vector<double> want = row_of(v.view(), 0, 0, 0);
        DecodeOutput output = run(*workload);
        double worst = 0;
        for (std::size_t i = 0; i < output.out.size(); ++i) {
          const double x = want[i % want.size()], error = std::abs(output.out[i] - x);
          worst = larger_error(worst, error == 0 ? 0 : error / std::max(std::abs(x), least_normal));
          if (std::abs(x) < least_normal) output.out[i] = static_cast<float>(x);  // which no bound of the oracle allows for
        }
        CHECK(against_oracle(*workload, output) == "");
        CHECK(worst * 0x1p23 <= 2);
      }
    }
  }
}

TEST_CASE("tensor: states of padding are not stored") {
  // Floats that a kernel stores for its forests, by the queries of a tile. In units of eight leaves subtrees wait there too.
  const auto n_stored = [](std::int64_t heads, DType dtype, std::int64_t d) {
    const auto workload =
        normal_workload(7900, {.heads = heads, .kv_heads = 1, .head_dim = d, .value_dim = d, .n_keys = 300, .dtype = dtype});
    const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
    const device::LaunchPlan plan = device::kEqualRuns.plan(shard.params, dtype, {.n_splits = 2, .unit_log = 3});
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

}  // namespace tree_attn::test::tensor_test
