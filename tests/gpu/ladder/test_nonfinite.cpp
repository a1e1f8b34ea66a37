// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief NaN and Inf in q, k and v reach the outputs that the formula says, in every step, and no others (eq. (7)).
#include "tests/support/device_params.hpp"
#include "tests/support/sanitized.hpp"

namespace tree_attn::test::nonfinite_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

/// Rows and the queries that share a key/value head. Short rows are copied one by one, as are those of a number of keys that
/// is no multiple of eight; others in bulk.
struct Size {
  DType dtype;
  std::int64_t group, d_h, d_v, n_keys;

  /// A large one takes every number of splits; a small one has two entries of two key/value heads.
  bool is_large() const { return n_keys > 100; }
  std::int64_t n_pairs() const { return is_large() ? 1 : 2; }
  Axes axes() const {
    return {.batch = n_pairs(),
            .heads = n_pairs() * group,
            .kv_heads = n_pairs(),
            .head_dim = d_h,
            .value_dim = d_v,
            .n_keys = n_keys,
            .dtype = dtype};
  }
};
/// Tensor cores, with one column per query or with two, and scalar cores.
constexpr Size kSizes[] = {
    {DType::F32, 2, 16, 16, 90},    {DType::BF16, 2, 16, 16, 90},    {DType::F16, 2, 16, 16, 90},
    {DType::F32, 2, 64, 64, 88},    {DType::F16, 2, 64, 64, 88},     {DType::BF16, 2, 256, 256, 88},
    {DType::F16, 2, 264, 264, 90},  {DType::BF16, 6, 40, 72, 300},   {DType::F16, 2, 40, 72, 300},
    {DType::F32, 1, 40, 72, 300},   {DType::BF16, 1, 40, 72, 300},   {DType::BF16, 2, 128, 128, 304},
    {DType::F16, 6, 128, 128, 304}, {DType::F32, 1, 128, 128, 304},  {DType::BF16, 6, 256, 256, 304},
    {DType::F32, 2, 256, 256, 304}, {DType::F16, 1, 256, 256, 304},  {DType::BF16, 2, 264, 264, 304},
    {DType::F16, 9, 304, 512, 304}, {DType::BF16, 2, 520, 520, 304},
};

/// Tensor that gets the number: always in the last batch entry, at component 2; a query of head 1, the last key/value head.
enum class Where { Query, Key, Value };

std::unique_ptr<TensorWorkload> workload_with(const Size& size, Where where, std::int64_t position, float number) {
  const Axes axes = size.axes();
  std::mt19937 random(6000);
  Tensor q = normal_tensor(random, axes.q(), axes.dtype), k = normal_tensor(random, axes.k(), axes.dtype),
         v = normal_tensor(random, axes.v(), axes.dtype);
  const std::int64_t last = size.n_pairs() - 1;
  // A component of k of -Inf is a key not seen where q is positive.
  for (std::int64_t h = last * size.group; where == Where::Key && h < axes.heads; ++h) q.set(last, h, 0, 2, 1.0f);
  if (where == Where::Query) q.set(last, 1, 0, 2, number);
  if (where == Where::Key) k.set(last, last, position, 2, number);
  if (where == Where::Value) v.set(last, last, position, 2, number);
  return workload_of(std::move(q), std::move(k), std::move(v));
}

/// Tests whether all that the number may not reach has the bits of the clean run.
bool untouched(const Size& size, Where where, const DecodeOutput& clean, const DecodeOutput& output) {
  const Axes axes = size.axes();
  const auto same = [](float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; };
  for (std::size_t r = 0; r < output.lse.size(); ++r) {
    const std::int64_t entry = static_cast<std::int64_t>(r) / axes.heads, head = static_cast<std::int64_t>(r) % axes.heads;
    const bool reaches =
        entry == size.n_pairs() - 1 && (where == Where::Query ? head == 1 : head / size.group == size.n_pairs() - 1);
    if (!(reaches && where != Where::Value) && !same(output.lse[r], clean.lse[r])) return false;
    for (std::size_t c = 0, n = static_cast<std::size_t>(size.d_v); c < n; ++c) {
      if (reaches && (where != Where::Value || c == 2)) continue;
      if (!same(output.out[r * n + c], clean.out[r * n + c])) return false;
    }
  }
  return true;
}

}  // namespace

/// @tested{eq_7, eq. (7)}
TEST_CASE("nonfinite: NaN and Inf reach their own outputs and no other, in every step and with every number of splits") {
  int n = 0;
  for (const Size& size : kSizes) {
    for (const Where where : {Where::Query, Where::Key, Where::Value}) {
      if (size.d_h > 64 && where != Where::Value) continue;
      for (const std::int64_t position : {std::int64_t{0}, size.n_keys / 2, size.n_keys - 1}) {
        for (const float number : {kNaN, kInf, -kInf}) {
          if (size.is_large() && (where != Where::Value || number != kInf || (size.d_h > 64 && position == 0))) continue;
          if (kIsSanitized && n++ % 4 != 0) continue;
          const auto workload = workload_with(size, where, position, number),
                     clean_workload = workload_with(size, where, position, 0.25f);
          const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
          for (const device::LadderStep* step : device::all_kernels()) {
            if (step->refusal(shard.params, shard.dtype) != "" || (size.is_large() && step->max_splits == 1)) continue;
            const DecodeOutput clean = run_step(*step, *clean_workload, {.n_splits = 2});
            for (const int n_splits : size.is_large() ? std::vector{1, 2, 3, 4, 5} : std::vector{2}) {
              INFO(std::string(step->name)
                   << ", " << name_of(size.dtype) << ", d " << size.d_h << ", tensor " << static_cast<int>(where)
                   << ", position " << position << ", number " << number << ", splits " << n_splits);
              const DecodeOutput output = run_step(*step, shard, {.n_splits = n_splits});
              CHECK(against_oracle(*workload, output, *step, shard) == "");
              CHECK(untouched(size, where, clean, output));
            }
          }
        }
      }
    }
  }
}

/// Eight rows behind a causal edge, of which the last key is hidden to all but one; rows of one slice of components and of
/// four; leaves that are units, and units of several leaves.
TEST_CASE("nonfinite: sums of units are replaced in the rows, components and units that have none of the values alone") {
  const auto check = [](DType dtype, std::int64_t d, std::int64_t n_keys, int log) {
    constexpr std::int64_t kQueries = 8;
    const Axes axes{.heads = 2, .head_dim = d, .value_dim = d, .n_queries = kQueries, .n_keys = n_keys, .dtype = dtype};
    std::mt19937 random(6200);
    const Tensor q = normal_tensor(random, axes.q(), dtype), k = normal_tensor(random, axes.k(), dtype),
                 v = normal_tensor(random, axes.v(), dtype);
    const auto run = [&](std::span<const std::int64_t> positions, std::int64_t c, float number) {
      Tensor values = v;
      for (const std::int64_t a : positions) values.set(0, 1, a, c, number);
      const auto workload = workload_of(q, k, values);
      DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
      shard.params.rule = {.causal = true};
      return run_step(device::kEqualRuns, shard, {.n_splits = 2, .unit_log = log});
    };
    std::vector<std::int64_t> of_each_leaf;
    for (std::int64_t a = 5; a < n_keys; a += kLeafKeys) of_each_leaf.push_back(a);
    const std::vector<std::int64_t> places[] = {{0}, {n_keys - 1}, {n_keys - 4, n_keys - 3}, of_each_leaf};
    for (const std::vector<std::int64_t>& positions : places) {
      for (const auto& [c, number] : {std::pair{std::int64_t{0}, kInf}, {d - 1, kNaN}, {d / 2 + 3, -kInf}}) {
        INFO(name_of(dtype) << ", d " << d << ", " << n_keys << " keys, units of 2^" << log << " leaves, component " << c
                            << ", from position " << positions[0]);
        const DecodeOutput clean = run(positions, c, 0.25f), output = run(positions, c, number);
        CHECK(same_bits(output.lse, clean.lse));
        int n_other = 0, n_wrong = 0;
        for (std::int64_t row = 0; row < 2 * kQueries; ++row) {
          const bool sees = row >= kQueries && positions[0] < n_keys - kQueries + 1 + row % kQueries;
          for (std::int64_t j = 0; j < d; ++j) {
            const auto i = static_cast<std::size_t>(row * d + j);
            if (sees && j == c)
              n_wrong += std::isnan(number) ? !std::isnan(output.out[i]) : output.out[i] != number;
            else
              n_other += std::memcmp(&output.out[i], &clean.out[i], sizeof(float)) != 0;
          }
        }
        CHECK(n_other == 0);
        CHECK(n_wrong == 0);
      }
    }
  };
  for (const DType dtype : {DType::BF16, DType::F16}) {
    for (const std::int64_t d : {40, 128, 256, 512}) {
      if (kIsSanitized && d > 128) continue;
      check(dtype, d, 150, 0), check(dtype, d, 150, 2);
    }
    check(dtype, 64, 700, 0), check(dtype, 64, 700, 1), check(dtype, 64, 700, 3);
  }
}

TEST_CASE("nonfinite: the value of a key that is not seen is not looked at, also where no key is seen") {
  for (const auto& [dtype, heads, dim, n_keys] : {std::tuple{DType::F32, 4, 16, 100},
                                                  {DType::BF16, 4, 16, 100},
                                                  {DType::F16, 4, 16, 100},
                                                  {DType::F32, 2, 64, 104},
                                                  {DType::BF16, 2, 64, 104},
                                                  {DType::BF16, 4, 64, 104}}) {
    const Axes axes{.heads = heads, .kv_heads = 2, .head_dim = dim, .value_dim = dim, .n_keys = n_keys, .dtype = dtype};
    for (const bool sees_none : {false, true}) {
      std::mt19937 random(6100);
      Tensor q = normal_tensor(random, axes.q(), dtype), k = normal_tensor(random, axes.k(), dtype),
             v = normal_tensor(random, axes.v(), dtype);
      for (std::int64_t h = 0; h < axes.heads; ++h) q.set(0, h, 0, 3, 1);
      Tensor garbage = v;
      for (std::int64_t a = 0; a < n_keys; ++a) {
        if (!sees_none && a != 0 && a != 7 && a != 63 && a != 64 && a != 99) continue;
        for (std::int64_t h = 0; h < axes.kv_heads; ++h)
          k.set(0, h, a, 3, -kInf), garbage.set(0, h, a, a % 16, a % 2 == 0 ? kNaN : kInf);
      }
      const auto workload = workload_of(q, k, v), poisoned = workload_of(q, k, garbage);
      const DeviceShard shard(poisoned->query(0), poisoned->whole(), poisoned->lengths(), poisoned->scale);
      for (const device::LadderStep* step : device::all_kernels()) {
        if (step->refusal(shard.params, shard.dtype) != "") continue;
        INFO(std::string(step->name) << ", " << name_of(dtype) << ", d " << dim << ", sees none: " << sees_none);
        CHECK(against_oracle(*workload, run_step(*step, shard, {.n_splits = 2}), *step, shard) == "");
      }
    }
  }
}

}  // namespace tree_attn::test::nonfinite_test
