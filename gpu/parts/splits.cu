// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How the keys are cut over blocks.
#include "gpu/parts/splits.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

int choose_splits(const DecodeParams& params, std::int64_t n_query_tiles, int n_workers) {
  const std::int64_t n_leaves = (params.end - params.begin + kLeafKeys - 1) / kLeafKeys;
  const std::int64_t fill = device().n_multiprocessors / std::max<std::int64_t>(1, n_query_tiles);
  return static_cast<int>(std::max<std::int64_t>(1, std::min(fill, (n_leaves + n_workers - 1) / n_workers)));
}

LaunchPlan plan_splits(const DecodeParams& params, DType dtype, const LaunchOptions& options) {
  LaunchPlan plan{.n_threads = options.n_threads > 0 ? options.n_threads : kSplitThreads, .n_counters = params.n_rows()};
  with_sub_warp(params, dtype, [&](auto sub_warp) {
    using SubWarp = decltype(sub_warp);
    plan.n_splits = options.n_splits > 0 ? options.n_splits
                                         : choose_splits(params, params.n_rows(), n_workers_of<SubWarp>(plan.n_threads));
    plan.n_floats = params.n_rows() * SplitWorkspace::of<SubWarp>(params, plan, nullptr).n_floats();
  });
  return plan;
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
