// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Rung 7, units and a launch that combines them: the bits of rung 6, and of the library, for any units (section 5).
#include "tests/support/device_params.hpp"
#include "tests/support/sweep.hpp"

namespace tree_attn::test::rung_7_test {
namespace {

bool has_tensor_maps() { return device::device().major >= 9; }

}  // namespace

/// Groups that fill tiles and that do not, sequences of different lengths, units of 1 to 16 leaves, runs of some of them or
/// of less than one, and values that are not finite.
/// @tested{eq_7, eq. (7)} @tested{thm_1, Thm. 1}
TEST_CASE("rung 7: the bits of rung 6, whatever the units and the runs") {
  if (!has_tensor_maps()) return;
  std::mt19937 random(7700);
  const auto draw = [&random](std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(random() % static_cast<unsigned>(most - least + 1));
  };
  for (int i = 0; i < (takes_all_cases() ? 150 : 24); ++i) {
    Axes axes{.batch = draw(1, 3),
              .kv_heads = draw(1, 2),
              .head_dim = 8 * draw(1, 16),
              .value_dim = 8 * draw(1, 16),
              .n_keys = draw(1, i % 3 == 0 ? 2500 : 300),
              .dtype = DType::BF16};
    axes.heads = axes.kv_heads * draw(1, i % 4 == 0 ? 20 : 3);
    std::vector<std::int64_t> lengths{axes.n_keys, draw(0, axes.n_keys), draw(0, axes.n_keys)};
    lengths.resize(static_cast<std::size_t>(axes.batch));
    const auto normal = normal_workload(7700 + static_cast<unsigned>(i), axes, lengths);
    Tensor v = copy_of(normal->v());
    if (i % 2 == 1) {
      const float numbers[] = {std::numeric_limits<float>::infinity(), std::nanf("")};
      v.set(0, 0, draw(0, axes.n_keys - 1), draw(0, axes.value_dim - 1), numbers[i / 2 % 2]);
    }
    const auto workload = workload_of(copy_of(normal->query(0)), copy_of(normal->k()), v, lengths, normal->scale);
    const device::LaunchOptions options{.n_splits = static_cast<int>(draw(0, 5)), .unit_log = static_cast<int>(draw(-1, 4))};
    INFO("draw " << i << ", N " << axes.n_keys << ", " << axes.heads << " heads over " << axes.kv_heads << ", d_v "
                 << axes.value_dim << ", splits " << options.n_splits << ", units 2^" << options.unit_log);
    CHECK(same_output(run_step(device::kUnits, *workload, options), run_step(device::kTensor, *workload, {.n_splits = 2})));
  }
}

/// Three passes of the launch that combines; and units that are aligned in the sequence, not in the shard.
/// @tested{thm_1, Thm. 1}
TEST_CASE("rung 7: hundreds of units of one query, and a shard that begins inside a unit") {
  if (!has_tensor_maps()) return;
  const Axes axes{
      .heads = 1, .kv_heads = 1, .head_dim = 8, .value_dim = 8, .n_keys = 500 * kLeafKeys - 3, .dtype = DType::BF16};
  const auto workload = normal_workload(7790, axes);
  const auto check = [&](KeyRange range, int unit_log) {
    const DeviceShard shard(workload->query(0), workload->shard(range), workload->lengths(), workload->scale);
    INFO(range.begin << " to " << range.end << ", units 2^" << unit_log);
    CHECK(same_output(run_step(device::kUnits, shard, {.unit_log = unit_log}), run_step(device::kEqualRuns, shard)));
  };
  check({0, axes.n_keys}, 0);
  check({61 * kLeafKeys, 90 * kLeafKeys}, 0), check({61 * kLeafKeys, 90 * kLeafKeys}, 3);
}

}  // namespace tree_attn::test::rung_7_test
