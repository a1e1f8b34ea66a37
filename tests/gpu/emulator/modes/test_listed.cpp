// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The library kernel over leaves of a list in the mode of the emulator that watches shared memory.
#if defined(TREE_ATTN_EMULATOR_SHADOW)
#include "gpu/emulator/settings.hpp"
#include "gpu/engine/equal_runs.cuh"
#include "tests/support/device_params.hpp"

namespace tree_attn::test::listed_test {
namespace {

/// Decodes a shard of one sequence whose leaves a list names in another order: the last one, which alone may lack keys,
/// first.
DecodeOutput last_leaf_first(const DeviceShard& shard, std::int64_t n_keys) {
  const auto n = static_cast<std::int32_t>(leaves_of({0, n_keys}));
  std::vector<ListedLeaf> leaves;
  for (std::int32_t i = 0; i < n; ++i) leaves.push_back({i, (i + n - 1) % n, i == 0 ? n - 1 : kSeenWhole});
  const LeafList list{.begin = 0,
                      .end = n * kLeafKeys,
                      .n_leaves = n,
                      .last = 0,
                      .first_slot = 0,
                      .gap = n,
                      .after_gap = n,
                      .end_slot = n,
                      .n_before_gap = n};
  device::DeviceBuffer<ListedLeaf> of_leaves(n, MemoryUse::Input);
  device::DeviceBuffer<LeafList> of_list(1, MemoryUse::Input);
  of_leaves.upload(leaves), of_list.upload({&list, 1});
  ListedParams params;
  static_cast<DecodeParams&>(params) = shard.params;
  params.lists = of_list.data(), params.leaf = of_leaves.data(), params.most_leaves = n;
  params.tree_positions = list.end, params.n_subtrees = n_subtrees(0, list.end);

  const device::LaunchPlan plan = device::plan_equal_runs<BFloat16>(params, device::LaunchOptions{.n_splits = 1});
  const DeviceWorkspace workspace(plan);
  device::DeviceBuffer<float> out(params.n_rows() * params.d_v), lse(params.n_rows());
  out.fill(0xFF), lse.fill(0xFF);
  const auto memory = device::run_units<BFloat16>(params, true, plan, workspace.get(), device::Stream{});
  device::run_combine<BFloat16>(params, memory, {.out = out.data(), .lse = lse.data()}, plan, device::Stream{});
  return {out.download(), lse.download()};
}

}  // namespace

/// A ring is filled again where rows without a key have been cleared, or were not copied: the list goes on after that leaf.
/// @tested{thm_1, Thm. 1}
TEST_CASE("modes: leaves of a list, of which the first has the last key") {
  struct Case {
    std::int64_t heads, d_h, d_v, n_leaves;  // leaves fill the rings of all warps and more
  };
  for (const auto& [heads, d_h, d_v, n_leaves] : {Case{4, 64, 64, 24}, {3, 264, 24, 7}, {20, 64, 64, 11}}) {
    const std::int64_t n_keys = n_leaves * kLeafKeys - 5;
    const Axes axes{.heads = heads,
                    .kv_heads = 1,
                    .head_dim = d_h,
                    .value_dim = d_v,
                    .n_keys = n_leaves * kLeafKeys,
                    .dtype = DType::BF16};
    const auto workload = normal_workload(9400, axes, std::vector<std::int64_t>{n_keys});
    const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
    for (const int major : {8, 9}) {
      INFO(heads << " heads, d " << d_h << ", major " << major);
      const emulated::SettingsScope scope({.seed = 3, .n_multiprocessors = 1, .major = major});
      CHECK(against_oracle(*workload, last_leaf_first(shard, n_keys), device::kEqualRuns, shard) == "");
    }
  }
}

}  // namespace tree_attn::test::listed_test
#endif
