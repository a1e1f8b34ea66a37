// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Every step of the ladder computes attention (eq. (7)), on every shape that it accepts.
#include "tests/gpu/parts/part_kernels.hpp"
#include "tests/support/device_params.hpp"

namespace tree_attn::test {
namespace {

/// Shapes that steps were seen to fail on, here or elsewhere: odd head sizes, groups, no keys, one key, ragged ends.
std::vector<std::pair<Axes, std::vector<std::int64_t>>> shapes() {
  std::vector<std::pair<Axes, std::vector<std::int64_t>>> shapes;
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    for (const std::int64_t d : {64, 128, 256})
      shapes.push_back({{.heads = 2, .kv_heads = 1, .head_dim = d, .value_dim = d, .n_keys = 200, .dtype = dtype}, {200}});
    shapes.push_back(
        {{.batch = 4, .heads = 6, .kv_heads = 2, .head_dim = 128, .value_dim = 64, .n_keys = 150, .dtype = dtype},
         {150, 0, 1, 65}});
    for (const std::int64_t d : {1, 46, 59, 111, 192, 512})
      shapes.push_back({{.heads = 1, .kv_heads = 1, .head_dim = d, .value_dim = d, .n_keys = 77, .dtype = dtype}, {77}});
  }
  return shapes;
}

}  // namespace

/// @tested{eq_7, eq. (7)}
TEST_CASE("ladder: every step is within the bound of the oracle, on all shapes that it accepts") {
  for (const device::LadderStep* step : device::ladder()) {
    int n_accepted = 0;
    unsigned seed = 4000;
    for (const auto& [axes, lengths] : shapes()) {
      const auto workload = normal_workload(seed++, axes, lengths);
      const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
      if (step->refusal(shard.params, shard.dtype) != "") continue;
      ++n_accepted;
      INFO(std::string(step->name) << ", " << name_of(axes.dtype) << ", d_h " << axes.head_dim << ", seed " << seed - 1);
      CHECK(against_oracle(*workload, run_step(*step, shard), longest_chain(*step, shard)) == "");
    }
    CHECK_MESSAGE(n_accepted >= 6, step->name);
  }
}

TEST_CASE("overlap: a step waits for the launch before it, and begins after it if the plan says so") {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const Axes axes{.batch = 2, .heads = 8, .kv_heads = 2, .head_dim = 64, .value_dim = 64, .n_keys = 600, .dtype = dtype};
    const auto workload = normal_workload(4400, axes, std::vector<std::int64_t>{600, 130});
    const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
    for (const device::LadderStep* step : {&device::kEqualRuns, &device::kShortEnd}) {
      const DecodeOutput alone = run_step(*step, shard, {.n_splits = 3});
      device::LaunchPlan plan = step->plan(shard.params, dtype, {.n_splits = 3});
      const bool has_clusters = device::device().major >= 9;
      CHECK(plan.overlaps == has_clusters);
      CHECK((plan.cluster > 0) == (has_clusters && step == &device::kShortEnd));
      const DeviceWorkspace workspace(plan);
      device::DeviceBuffer<float> out(shard.params.n_rows() * 64), lse(shard.params.n_rows());
      const device::DeviceBuffer<unsigned> word(1);
      for (const bool overlaps : {plan.overlaps, false}) {
        INFO(std::string(step->name) << ", " << name_of(dtype) << ", overlaps: " << overlaps);
        plan.overlaps = overlaps;
        out.fill(0xFF), lse.fill(0xFF);
        // The second launch writes what the first may still write.
        const auto run = [&] {
          step->run(shard.params, dtype, {.out = out.data(), .lse = lse.data()}, plan, workspace.get(), device::Stream{});
        };
        run(), run();
        CHECK(same_output({out.download(), lse.download()}, alone));
        // A launch that has not overlapped the write has waited for its end, and so has what comes after it.
        device::queue_write(word.data());
        run();
        if (overlaps && device::kIsHostMemory)
          CHECK_THROWS_AS(device::queue_early_read(word.data()), DeviceError);
        else
          CHECK_NOTHROW(device::queue_early_read(word.data()));
      }
    }
  }
}

}  // namespace tree_attn::test
