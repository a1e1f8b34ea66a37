// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The library kernels with stamps: its output is that without, and its stamps are in order.
#include "tree_attn/tests/gpu/time_ladder/stamped_runs.hpp"
#include "tree_attn/tests/support/device_params.hpp"

namespace tree_attn::test {
namespace {

Axes rows_of(DType dtype, std::int64_t heads, std::int64_t d = 128) {
  return {.batch = 2, .heads = heads, .kv_heads = 2, .head_dim = d, .value_dim = d, .n_keys = 600, .dtype = dtype};
}

}  // namespace

TEST_CASE("stamps: the same bits, and each block with work starts, walks and is done, in this order") {
  unsigned seed = 8800;
  for (const Axes& axes :
       {rows_of(DType::F32, 2), rows_of(DType::F32, 6), rows_of(DType::BF16, 2), rows_of(DType::BF16, 8)}) {
    const auto workload = normal_workload(seed++, axes, std::vector<std::int64_t>{600, 130});
    const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
    for (const auto& [step, n_splits] :
         {std::pair(&device::kEqualRuns, 0), {&device::kEqualRuns, 3}, {&device::kShortEnd, 3}}) {
      const device::LaunchPlan plan = step->plan(shard.params, shard.dtype, {.n_splits = n_splits});
      CHECK((plan.cluster > 0) == (step == &device::kShortEnd && device::device().major >= 9));
      const DeviceWorkspace workspace(plan);
      device::DeviceBuffer<float> out(shard.params.n_rows() * 128), lse(shard.params.n_rows());
      device::DeviceBuffer<std::uint64_t> stamps(std::int64_t{plan.n_blocks} * device::kStamps);
      out.fill(0xFF), lse.fill(0xFF), stamps.fill(0);
      device::run_stamped(shard.params, shard.dtype, {.out = out.data(), .lse = lse.data()}, plan, workspace.get(),
                          stamps.data(), device::Stream{});
      CAPTURE(seed - 1);
      INFO(std::string(step->name) << ", splits: " << n_splits);
      CHECK(is_ready(workspace));
      CHECK(same_output({out.download(), lse.download()}, run_step(*step, shard, {.n_splits = n_splits})));
      const std::vector<std::uint64_t> times = stamps.download();
      int n_working = 0;
      for (std::size_t i = 0; i < times.size(); i += device::kStamps) {
        const std::uint64_t *const of_block = times.data() + i, started = of_block[device::kStarted];
        if (started == 0) {
          CHECK(of_block[device::kDone] == 0);
          continue;
        }
        CHECK(started <= of_block[device::kWalked]);
        CHECK(of_block[device::kWalked] <= of_block[device::kDone]);
        ++n_working;
      }
      CHECK(n_working > 1);
      if (plan.cluster > 0) CHECK(n_working == plan.n_blocks);
    }
  }
}

TEST_CASE("stamps: other shapes are refused") {
  for (const Axes& axes : {rows_of(DType::F32, 2, 64), rows_of(DType::F16, 2), rows_of(DType::BF16, 2, 64)}) {
    const auto workload = normal_workload(8810, axes);
    const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
    CHECK_THROWS_AS(device::run_stamped(shard.params, shard.dtype, {}, {}, {}, nullptr, device::Stream{}), DeviceError);
  }
}

}  // namespace tree_attn::test
