// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Every step of the ladder computes attention (eq. (7)), on every shape that it accepts.
#include "gpu/backend/append_rows.hpp"
#include "tests/gpu/engine/part_kernels.hpp"
#include "tests/support/device_params.hpp"

namespace tree_attn::test::ladder_test {
namespace {

/// Shapes that steps were seen to fail on, here or elsewhere: odd head sizes, groups, no keys, one key, ragged ends, values
/// in the keys.
std::vector<std::pair<Axes, std::vector<std::int64_t>>> shapes() {
  std::vector<std::pair<Axes, std::vector<std::int64_t>>> shapes;
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    for (const std::int64_t d : {64, 128, 256})
      shapes.push_back({{.heads = 2, .kv_heads = 1, .head_dim = d, .value_dim = d, .n_keys = 200, .dtype = dtype}, {200}});
    shapes.push_back(
        {{.batch = 4, .heads = 6, .kv_heads = 2, .head_dim = 128, .value_dim = 64, .n_keys = 150, .dtype = dtype},
         {150, 0, 1, 65}});
    // As multi-head latent attention has them.
    shapes.push_back(
        {{.batch = 2, .heads = 3, .kv_heads = 1, .head_dim = 576, .value_dim = 512, .n_keys = 150, .dtype = dtype},
         {150, 64}});
    for (const std::int64_t d : {1, 8, 46, 59, 72, 96, 111, 192, 512})
      shapes.push_back({{.heads = 1, .kv_heads = 1, .head_dim = d, .value_dim = d, .n_keys = 77, .dtype = dtype}, {77}});
  }
  return shapes;
}

}  // namespace

/// @tested{eq_7, eq. (7)}
TEST_CASE("ladder: every step is within the bound of the oracle, on all shapes that it accepts") {
  for (const device::LadderStep* step : device::all_kernels()) {
    int n_accepted = 0;
    unsigned seed = 4000;
    for (const auto& [axes, lengths] : shapes()) {
      const auto normal = normal_workload(seed++, axes, lengths);
      // Values of shorter rows are the first components of the keys.
      const TensorView v = axes.value_dim < axes.head_dim ? normal->k().components(axes.value_dim) : normal->v();
      TensorWorkload workload({}, normal->query(0), normal->k(), v, lengths, normal->scale);
      const DeviceShard shard(workload.query(0), workload.whole(), lengths, workload.scale);
      if (step->refusal(shard.params, shard.dtype) != "") continue;
      ++n_accepted;
      INFO(std::string(step->name) << ", " << name_of(axes.dtype) << ", d_h " << axes.head_dim << ", seed " << seed - 1);
      CHECK(against_oracle(workload, run_step(*step, shard), *step, shard) == "");
      // The library kernels, which keep states, alone know of a causal edge and a window.
      DecodeParams edge = shard.params, window = shard.params;
      edge.n_queries = 2, edge.rule.causal = true, window.rule.window = 1;
      for (const DecodeParams& params : {edge, window})
        CHECK((step->refusal(params, shard.dtype) == "") == step->keeps_states);
    }
    // A rung for tensor maps takes none where there are no tensor maps.
    if (n_accepted > 0 || device::device().major >= 9) CHECK_MESSAGE(n_accepted >= 6, step->name);
  }
}

TEST_CASE("overlap: a step waits for the launch before it, and begins after it if the plan says so") {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const Axes axes{.batch = 2, .heads = 8, .kv_heads = 2, .head_dim = 64, .value_dim = 64, .n_keys = 600, .dtype = dtype};
    const auto workload = normal_workload(4400, axes, std::vector<std::int64_t>{600, 130});
    const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
    const DecodeOutput alone = run_step(device::kEqualRuns, shard, {.n_splits = 3});
    device::LaunchPlan plan = device::kEqualRuns.plan(shard.params, dtype, {.n_splits = 3});
    CHECK(plan.overlaps == (device::device().major >= 9));
    const DeviceWorkspace workspace(plan);
    device::DeviceBuffer<float> out(shard.params.n_rows() * 64), lse(shard.params.n_rows());
    const device::DeviceBuffer<unsigned> word(1);
    for (const bool overlaps : {plan.overlaps, false}) {
      INFO(name_of(dtype) << ", overlaps: " << overlaps);
      plan.overlaps = overlaps;
      out.fill(0xFF), lse.fill(0xFF);
      // The second launch writes what the first may still write.
      const auto run = [&] {
        device::kEqualRuns.run(shard.params, dtype, {.out = out.data(), .lse = lse.data()}, plan, workspace.get(),
                               device::Stream{});
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

TEST_CASE("overlap: the first copies do not wait for the launch before, and reach nothing that it may write") {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const Axes axes{.batch = 2, .heads = 8, .kv_heads = 2, .head_dim = 64, .value_dim = 64, .n_keys = 600, .dtype = dtype};
    const auto workload = normal_workload(4410, axes, std::vector<std::int64_t>{600, 321});
    DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
    const std::int64_t row = 64 * static_cast<std::int64_t>(bytes_of(dtype)), n_bytes = 2 * 2 * 600 * row;
    // Keys and values where kernels may write.
    device::DeviceBuffer<unsigned char> k(n_bytes), v(n_bytes), data(2 * 2 * 2 * row);
    const auto upload = [&](const TensorView& from, device::DeviceBuffer<unsigned char>& to, DeviceView& view) {
      to.upload({reinterpret_cast<const unsigned char*>(from.data), static_cast<std::size_t>(n_bytes)});
      view = {to.data(), {2 * 600 * 64, 600 * 64, 64}};
    };
    upload(workload->k(), k, shard.params.k), upload(workload->v(), v, shard.params.v);
    const auto rows_at = [&](const std::vector<std::int64_t>& at) {
      std::vector<std::byte> appended;
      for (std::int64_t i = 0; i < 2; ++i) {
        const std::int64_t position = std::max<std::int64_t>(0, at[static_cast<std::size_t>(i)]);
        for (const TensorView* from : {&workload->k(), &workload->v()}) {
          const Tensor of_heads = copy_of(from->entry(i).positions(position, position + 1));
          appended.insert(appended.end(), of_heads.bytes.begin(), of_heads.bytes.end());
        }
      }
      data.upload({reinterpret_cast<const unsigned char*>(appended.data()), appended.size()});
    };
    device::DeviceBuffer<std::int64_t> rows(2);
    device::DeviceBuffer<float> out(shard.params.n_rows() * 64), lse(shard.params.n_rows());
    const DecodeOutput alone = run_step(device::kEqualRuns, shard);
    for (const int n_splits : {1, 3, 10}) {
      INFO(name_of(dtype) << ", splits " << n_splits);
      device::LaunchPlan plan = device::kEqualRuns.plan(shard.params, dtype, {.n_splits = n_splits});
      const DeviceWorkspace workspace(plan);
      // The kernel that appends writes the rows again that are there.
      const auto run_after = [&](const std::vector<std::int64_t>& at) {
        rows_at(at), rows.upload(at);
        device::append_rows({rows.data(), data.data(), k.data(), v.data(), 2, 2, 600, 2 * 600, row, row, row, row},
                            device::Stream{});
        device::kEqualRuns.run(shard.params, dtype, {.out = out.data(), .lse = lse.data()}, plan, workspace.get(),
                               device::Stream{});
        CHECK(same_output({out.download(), lse.download()}, alone));
      };
      run_after({599, 320});
      run_after({-1, 320});
      run_after({-1, -1});
      // A launch that breaks the contract is found: the first block begins with this row. Without overlap there is none.
      if (plan.overlaps && device::kIsHostMemory) CHECK_THROWS_AS(run_after({0, -1}), DeviceError);
      plan.overlaps = false;
      run_after({0, -1});
    }
  }
}

}  // namespace tree_attn::test::ladder_test
