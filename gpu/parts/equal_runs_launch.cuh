// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The launch of the library kernel for one stored type: which worker, how many blocks (section 6).
#pragma once

#include "gpu/parts/equal_runs.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// One block a multiprocessor. A batch of one has query tiles of one length: then a few multiprocessors are left idle if
/// that saves every block a second work range, with a merge of its own.
inline std::int64_t choose_blocks(const DecodeParams& params, std::int64_t n_query_tiles) {
  const std::int64_t n = device().n_multiprocessors, even = n_query_tiles == 0 ? 0 : n / n_query_tiles * n_query_tiles;
  return params.batch == 1 && even * 10 >= n * 9 ? even : n;
}

/// How many blocks of what kind.
template <class T, class Params>
LaunchPlan plan_equal_runs(const Params& params, const LaunchOptions& options) {
  LaunchPlan plan;
  with_pipeline<T>(params, [&](auto pipeline) {
    using Pipeline = typename decltype(pipeline)::type;
    using Worker = typename Pipeline::Worker;
    const std::int64_t n = n_query_tiles<Worker>(params);
    const BlockSize block = fit_block<Pipeline>();
    plan.n_threads = block.n_threads;
    plan.n_stages = block.n_stages;
    plan.overlaps = device().major >= 9;
    plan.path = kPath<Worker>;
    plan.n_blocks = static_cast<int>(options.n_splits > 0 && n > 0 ? options.n_splits * n : choose_blocks(params, n));
    plan.n_splits =
        options.n_splits > 0 ? options.n_splits : static_cast<int>((plan.n_blocks + n - 1) / std::max<std::int64_t>(1, n));
    plan.shared_bytes = kEqualRunsBytes + block.n_bytes;
    plan.n_floats = plan.n_blocks * equal_runs_workspace<Pipeline>(params, plan, nullptr).n_floats();
    plan.n_counters = n;
  });
  return plan;
}

/// Launches what was planned.
template <class T, class Params>
void run_equal_runs(const Params& params, const DeviceOutput& output, const LaunchPlan& plan, const Workspace& workspace,
                    Stream stream) {
  if (params.n_rows() == 0) return;
  with_pipeline<T>(params, [&](auto pipeline) {
    using Pipeline = typename decltype(pipeline)::type;
    launch_runs<Pipeline>(equal_runs<Pipeline>, {.overlaps = plan.overlaps}, params, output, plan, workspace, stream);
  });
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
