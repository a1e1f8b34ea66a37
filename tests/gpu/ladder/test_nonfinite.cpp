// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief NaN and Inf in q, k and v reach the outputs that the formula says, in every step, and no others (eq. (7)).
#include "tree_attn/tests/support/device_params.hpp"
#include "tree_attn/tests/support/room_for_clusters.hpp"
#include "tree_attn/tests/support/sanitized.hpp"

namespace tree_attn::test::nonfinite_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr std::int64_t kHeads = 4, kBatch = 2;

/// Short rows are copied one by one; rows of 64 elements in whole steps of eight are copied in bulk.
struct Size {
  std::int64_t dim, keys;
};
constexpr Size kSizes[] = {{16, 90}, {64, 88}, {256, 88}, {264, 90}};

/// Which tensor gets the number: always in batch entry 1, in head 1 of its kind, at component 2.
enum class Where { Query, Key, Value };

std::unique_ptr<TensorWorkload> workload_with(Size size, DType dtype, Where where, std::int64_t position, float number) {
  const Axes axes{.batch = kBatch,
                  .heads = kHeads,
                  .kv_heads = 2,
                  .head_dim = size.dim,
                  .value_dim = size.dim,
                  .n_keys = size.keys,
                  .dtype = dtype};
  std::mt19937 random(6000);
  Tensor q = normal_tensor(random, axes.q(), dtype), k = normal_tensor(random, axes.k(), dtype),
         v = normal_tensor(random, axes.v(), dtype);
  // A component of k of -Inf is a key not seen where q is positive.
  if (where == Where::Key) q.set(1, 2, 0, 2, 1.0f), q.set(1, 3, 0, 2, 1.0f);
  if (where == Where::Query) q.set(1, 1, 0, 2, number);
  if (where == Where::Key) k.set(1, 1, position, 2, number);
  if (where == Where::Value) v.set(1, 1, position, 2, number);
  return workload_of(std::move(q), std::move(k), std::move(v));
}

/// Whether the number may show in component j of a row; j = -1 asks for lse.
bool may_show(Where where, std::size_t row, std::int64_t j) {
  const std::size_t entry = row / kHeads, head = row % kHeads;
  if (entry != 1) return false;
  if (where == Where::Query) return head == 1;
  return head >= 2 && (where == Where::Key || j == 2);
}

/// Whether all that the number may not reach has the bits of the clean run.
bool untouched(Where where, const DecodeOutput& clean, const DecodeOutput& output) {
  const auto same = [](float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; };
  const std::size_t dim = output.out.size() / output.lse.size();
  for (std::size_t r = 0; r < output.lse.size(); ++r) {
    if (!may_show(where, r, -1) && !same(output.lse[r], clean.lse[r])) return false;
    for (std::size_t c = 0; c < dim; ++c) {
      const std::size_t i = r * dim + c;
      const auto j = static_cast<std::int64_t>(c);
      if (!may_show(where, r, j) && !same(output.out[i], clean.out[i])) return false;
    }
  }
  return true;
}

}  // namespace

/// @tested{eq_7, eq. (7)}
TEST_CASE("nonfinite: NaN and Inf reach their own outputs and no other, in every step") {
  int n = 0;
  for (const auto& [size, dtype] : {std::pair{kSizes[0], DType::F32},
                                    {kSizes[0], DType::BF16},
                                    {kSizes[0], DType::F16},
                                    {kSizes[1], DType::F32},
                                    {kSizes[1], DType::F16},
                                    {kSizes[2], DType::BF16},
                                    {kSizes[3], DType::F16}}) {
    for (const Where where : {Where::Query, Where::Key, Where::Value}) {
      if (size.dim > 64 && where != Where::Value) continue;
      for (const std::int64_t position : {std::int64_t{0}, size.keys / 2, size.keys - 1}) {
        for (const float number : {kNaN, kInf, -kInf}) {
          if (kIsSanitized && n++ % 4 != 0) continue;
          const auto workload = workload_with(size, dtype, where, position, number),
                     clean = workload_with(size, dtype, where, position, 0.25f);
          const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
          for (const device::LadderStep* step : device::all_kernels()) {
            if (step->refusal(shard.params, shard.dtype) != "") continue;
            INFO(std::string(step->name) << ", " << name_of(dtype) << ", d " << size.dim << ", tensor "
                                         << static_cast<int>(where) << ", position " << position << ", number " << number);
            const DecodeOutput output = run_step(*step, shard, {.n_splits = 2});
            CHECK(against_oracle(*workload, output, longest_chain(*step, shard)) == "");
            CHECK(untouched(where, run_step(*step, *clean, {.n_splits = 2}), output));
          }
        }
      }
    }
  }
}

TEST_CASE("nonfinite: one Inf in a value changes its component alone, with every number of splits") {
  struct Case {
    DType dtype;
    std::int64_t group, d_h, d_v, n_keys;
  };
  // Tensor cores, with one column per query or with two, and CUDA cores, with rows one by one or in bulk.
  const Case cases[] = {
      {DType::BF16, 2, 40, 72, 300},   {DType::BF16, 6, 40, 72, 300},   {DType::F16, 2, 40, 72, 300},
      {DType::F16, 6, 40, 72, 300},    {DType::F32, 1, 40, 72, 300},    {DType::BF16, 1, 40, 72, 300},
      {DType::BF16, 2, 128, 128, 304}, {DType::F16, 6, 128, 128, 304},  {DType::F32, 1, 128, 128, 304},
      {DType::BF16, 1, 128, 128, 304}, {DType::BF16, 6, 256, 256, 304}, {DType::F16, 2, 256, 256, 304},
      {DType::F32, 2, 256, 256, 304},  {DType::F16, 1, 256, 256, 304},  {DType::BF16, 2, 264, 264, 304},
      {DType::F16, 9, 304, 512, 304},  {DType::BF16, 2, 520, 520, 304},
  };
  unsigned seed = 6070;
  int n_clusters = 0;
  for (const auto& [dtype, group, d_h, d_v, n_keys] : cases) {
    const Axes axes{.heads = group, .kv_heads = 1, .head_dim = d_h, .value_dim = d_v, .n_keys = n_keys, .dtype = dtype};
    std::mt19937 random(seed++);
    const Tensor q = normal_tensor(random, axes.q(), dtype), k = normal_tensor(random, axes.k(), dtype),
                 v = normal_tensor(random, axes.v(), dtype);
    const bool on_tensor_cores = dtype != DType::F32 && d_v <= 512;
    const device::LadderStep* const steps[] = {on_tensor_cores ? &device::kTensor : &device::kCopies, &device::kEqualRuns,
                                               &device::kShortEnd};
    const auto clean_workload = workload_of(q, k, v);
    const DecodeOutput clean = run_step(device::kEqualRuns, *clean_workload);
    const std::size_t shown = 67, n_components = static_cast<std::size_t>(d_v);
    for (const std::int64_t position :
         d_h < 128 ? std::vector<std::int64_t>{0, 63, 64, 200, 299} : std::vector<std::int64_t>{63, 299}) {
      Tensor with_inf = v;
      with_inf.set(0, 0, position, static_cast<std::int64_t>(shown), kInf);
      const auto workload = workload_of(q, k, with_inf);
      const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
      for (const device::LadderStep* step : steps) {
        for (int n_splits = 1; n_splits <= 5; ++n_splits) {
          const device::LaunchPlan plan = step->plan(shard.params, shard.dtype, {.n_splits = n_splits});
          CHECK(is_scalar(plan) == !on_tensor_cores);
          n_clusters += plan.cluster > 1;
          const DecodeOutput output = run_step(*step, shard, {.n_splits = n_splits});
          bool same = true, shows = true;
          for (std::size_t i = 0; i < output.out.size(); ++i) {
            if (i % n_components == shown)
              shows = shows && !std::isfinite(output.out[i]);
            else
              same = same && std::memcmp(&output.out[i], &clean.out[i], sizeof(float)) == 0;
          }
          INFO(std::string(step->name) << ", " << name_of(dtype) << ", group " << group << ", d " << d_h << ", position "
                                       << position << ", splits " << n_splits);
          CHECK(same);
          CHECK(shows);
          CHECK(std::memcmp(output.lse.data(), clean.lse.data(), clean.lse.size() * sizeof(float)) == 0);
        }
      }
    }
  }
  CHECK((n_clusters > 0) == RoomForClusters::has_clusters());
}

TEST_CASE("nonfinite: the value of a key that is not seen is not looked at") {
  for (const auto& [dtype, heads, dim, n_keys] : {std::tuple{DType::F32, 4, 16, 100},
                                                  {DType::BF16, 4, 16, 100},
                                                  {DType::F16, 4, 16, 100},
                                                  {DType::F32, 2, 64, 104},
                                                  {DType::BF16, 2, 64, 104},
                                                  {DType::BF16, 4, 64, 104}}) {
    const Axes axes{.heads = heads, .kv_heads = 2, .head_dim = dim, .value_dim = dim, .n_keys = n_keys, .dtype = dtype};
    std::mt19937 random(6100);
    Tensor q = normal_tensor(random, axes.q(), dtype), k = normal_tensor(random, axes.k(), dtype),
           v = normal_tensor(random, axes.v(), dtype);
    for (std::int64_t h = 0; h < axes.heads; ++h) q.set(0, h, 0, 3, 1);
    for (const std::int64_t a : {0, 7, 63, 64, 99}) {
      for (std::int64_t h = 0; h < axes.kv_heads; ++h) k.set(0, h, a, 3, -kInf);
    }
    Tensor garbage = v;
    for (const std::int64_t a : {0, 7, 63, 64, 99}) {
      for (std::int64_t h = 0; h < axes.kv_heads; ++h) garbage.set(0, h, a, a % 16, a % 2 == 0 ? kNaN : kInf);
    }
    const auto workload = workload_of(q, k, v), poisoned = workload_of(q, k, garbage);
    for (const device::LadderStep* step : device::all_kernels()) {
      const DeviceShard shard(poisoned->query(0), poisoned->whole(), poisoned->lengths(), poisoned->scale);
      if (step->refusal(shard.params, shard.dtype) != "") continue;
      CAPTURE(std::string(step->name));
      const DecodeOutput output = run_step(*step, shard);
      CHECK(against_oracle(*workload, output, longest_chain(*step, shard)) == "");
    }
  }
}

TEST_CASE("nonfinite: all scores -inf is the empty set, in every step") {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const Axes axes{.heads = 2, .kv_heads = 1, .head_dim = 16, .value_dim = 16, .n_keys = 70, .dtype = dtype};
    std::mt19937 random(6200);
    Tensor q = normal_tensor(random, axes.q(), dtype), k = normal_tensor(random, axes.k(), dtype),
           v = normal_tensor(random, axes.v(), dtype);
    q.set(0, 0, 0, 3, 1), q.set(0, 1, 0, 3, 2);
    for (std::int64_t a = 0; a < axes.n_keys; ++a) k.set(0, 0, a, 3, -kInf);
    const auto workload = workload_of(q, k, v);
    for (const device::LadderStep* step : device::all_kernels()) {
      const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
      if (step->refusal(shard.params, shard.dtype) != "") continue;
      CAPTURE(std::string(step->name));
      const DecodeOutput output = run_step(*step, shard, {.n_splits = 2});
      CHECK(std::all_of(output.out.begin(), output.out.end(), [](float z) { return z == 0; }));
      CHECK(std::all_of(output.lse.begin(), output.lse.end(), [](float lse) { return lse == -kInf; }));
    }
  }
}

}  // namespace tree_attn::test::nonfinite_test
