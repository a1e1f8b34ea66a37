// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Every length in a shard of every size: a batch of the lengths 0 to N, for each N up to two leaves and a key (eq.
/// (7)).
#include "tests/support/device_params.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/sweep.hpp"

#include <array>
#include <bit>
#include <numeric>
#include <random>

namespace tree_attn::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr std::int64_t kMostKeys = 2 * kLeafKeys + 1;

/// A kind of thread group, by a shape that gets it: warps on scalar cores for F32, tensor cores for 16 bits.
struct Kind {
  DType dtype;
  std::int64_t heads, dim;
  bool is_tile() const { return dtype != DType::F32; }
};
constexpr Kind kKinds[] = {{DType::F32, 1, 8},   {DType::F16, 1, 8}, {DType::BF16, 1, 8}, {DType::F32, 1, 32},
                           {DType::BF16, 1, 64}, {DType::F16, 2, 8}, {DType::BF16, 2, 8}};

std::string name_of(const Kind& kind) {
  return std::string(tree_attn::name_of(kind.dtype)) + (kind.is_tile() ? " on tensor cores, d " : " on scalar cores, d ") +
         std::to_string(kind.dim);
}

/// Content of the rows past a length.
enum class Tail { Elements, NotFinite };

/// A batch of all lengths 0 to n_keys: entry n uses n keys.
std::unique_ptr<TensorWorkload> all_lengths(const Kind& kind, Tail tail, std::int64_t n_keys) {
  std::mt19937 random(7000);
  Tensor q = normal_tensor(random, {n_keys + 1, kind.heads, 1, kind.dim}, kind.dtype),
         k = normal_tensor(random, {n_keys + 1, 1, n_keys, kind.dim}, kind.dtype),
         v = normal_tensor(random, {n_keys + 1, 1, n_keys, kind.dim}, kind.dtype);
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(n_keys + 1));
  std::iota(lengths.begin(), lengths.end(), 0);
  for (const std::int64_t n : lengths) {
    for (std::int64_t a = n; a < n_keys && tail == Tail::NotFinite; ++a) {
      for (std::int64_t c = 0; c < kind.dim; ++c) {
        k.set(n, 0, a, c, std::array{kNaN, kInf, -kInf}[static_cast<std::size_t>(a + c) % 3]);
        v.set(n, 0, a, c, std::array{kInf, -kInf, kNaN}[static_cast<std::size_t>(a + c) % 3]);
      }
    }
  }
  std::vector<std::vector<std::byte>> memory;
  std::vector<TensorView> views;
  for (Tensor* const tensor : {&q, &k, &v}) {
    views.push_back(*tensor);  // the bytes stay where they are
    memory.push_back(std::move(tensor->bytes));
  }
  return std::make_unique<TensorWorkload>(std::move(memory), views[0], views[1], views[2], std::move(lengths),
                                          1 / std::sqrt(static_cast<double>(kind.dim)));
}

}  // namespace

/// @tested{eq_7, eq. (7)}
TEST_CASE("lengths: every step decodes each of 0 to N, with the same bits whatever stands past the lengths") {
  for (const Kind& kind : kKinds) {
    for (const std::int64_t n_keys : {0, 1, 2, 3, 7, 12, 40, 64, 70}) {
      if (kIsSanitized && n_keys % 4 != 0) continue;
      const auto workload = all_lengths(kind, Tail::Elements, n_keys), poisoned = all_lengths(kind, Tail::NotFinite, n_keys);
      const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
      for (const device::LadderStep* step : device::all_kernels()) {
        if (step->refusal(shard.params, shard.dtype) != "") continue;
        INFO(std::string(step->name) << ", " << name_of(kind) << ", N = " << n_keys);
        const DecodeOutput output = run_step(*step, shard, {.n_splits = 2});
        CHECK(against_oracle(*workload, output, *step, shard) == "");
        CHECK(same_output(run_step(*step, *poisoned, {.n_splits = 2}), output));
      }
    }
  }
}

/// @tested{eq_7, eq. (7)}
TEST_CASE("lengths: values without components have the log-sum-exp of others, from rung 2 on") {
  for (const Kind& kind : kKinds) {
    for (const std::int64_t n_keys : {1, 70, 500}) {
      const auto lse_of = [&](const device::LadderStep& step, std::int64_t d_v) {
        return run_step(step,
                        *normal_workload(7020, {.batch = 2,
                                                .heads = 2 * kind.heads,
                                                .head_dim = kind.dim,
                                                .value_dim = d_v,
                                                .n_keys = n_keys,
                                                .dtype = kind.dtype}),
                        {.n_splits = 2})
            .lse;
      };
      // Rung 1 finds a sum for each component.
      for (const device::LadderStep* step : device::all_kernels().subspan(1)) {
        const auto workload = normal_workload(7020, {.heads = 2 * kind.heads, .head_dim = kind.dim, .dtype = kind.dtype});
        const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
        if (step->refusal(shard.params, shard.dtype) != "") continue;
        INFO(std::string(step->name) << ", " << name_of(kind) << ", N = " << n_keys);
        CHECK(same_bits(lse_of(*step, 0), lse_of(*step, 8)));
      }
    }
  }
}

TEST_CASE("lengths: warps without positions leave no state") {
  const auto workload = normal_workload(7010, {.heads = 1, .kv_heads = 1, .head_dim = 8, .value_dim = 8});
  const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
  const device::LaunchPlan plan = device::kEqualRuns.plan(shard.params, shard.dtype, {.n_splits = 1});
  device::DeviceBuffer<float> floats(plan.n_floats), out(8), lse(1);
  device::DeviceBuffer<unsigned> counters(plan.n_counters);
  floats.fill(0xFF), counters.fill(0);
  device::kEqualRuns.run(shard.params, shard.dtype, {.out = out.data(), .lse = lse.data()}, plan,
                         {floats.data(), counters.data()}, device::Stream{});
  // One leaf is one unit, of one of the warps: a state of shift, sum and 8 components, in 12 floats.
  const std::vector<float> left = floats.download();
  const auto written = [](float x) { return std::bit_cast<std::uint32_t>(x) != 0xFFFFFFFF; };
  CHECK(plan.n_threads / 32 >= 4);
  CHECK(std::count_if(left.begin(), left.end(), written) == 12);
}

/// @tested{thm_1, Thm. 1}
TEST_CASE("lengths: shards join to the whole, for each length 0 to N") {
  std::vector<std::vector<std::int64_t>> layouts{{64, 64, 1}, {0, 64, 65}, {128, 1}, {64, 65}};
  if (!takes_all_cases()) layouts.resize(kIsSanitized ? 1 : 2);
  for (const Kind& kind : kKinds) {
    const auto workload = all_lengths(kind, Tail::Elements, kMostKeys);
    const DecodeOutput whole = run_step(device::kEqualRuns, *workload);
    int n_parts = 0;
    for (const std::vector<std::int64_t>& layout : layouts) {
      INFO(name_of(kind) << ", first shard of " << layout[0]);
      Forest<float> forest(workload->shape().n_rows(), kind.dim);
      for (const KeyRange& range : ranges_of_lengths(layout)) {
        const Forest<float> part = forest_of(device::kEqualRuns, *workload, range, 1 + n_parts++ % 5);
        forest.append(part.subtrees(), part.states().data());
      }
      const DecodeOutput joined = finish_rows(forest.fold(), forest.n_rows(), kind.dim);
      CHECK(same_output(joined, whole));
      CHECK(against_oracle(*workload, joined, kind.is_tile() ? 400 : 0) == "");
    }
  }
}

}  // namespace tree_attn::test
