// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The launch of the kernel for short sequences for one stored type (section 6).
#pragma once

#include "gpu/parts/short_end.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// See short_end.cuh.
template <class T>
LaunchPlan plan_short_end(const DecodeParams& params, const LaunchOptions& options) {
  LaunchPlan plan;
  with_pipeline<T>(params, [&](auto pipeline) {
    using Pipeline = typename decltype(pipeline)::type;
    using Worker = typename Pipeline::Worker;
    const std::int64_t query_tiles = n_query_tiles<Worker>(params);
    const BlockSize block = fit_block<Pipeline>();
    if (InCluster<Worker>::kFloats > block.n_scratch_floats || query_tiles > 65535) return;
    const auto n_resident = [&block](int size) {
      return n_resident_clusters(short_end<Pipeline>, {.grid = {static_cast<unsigned>(size)},
                                                       .block = {static_cast<unsigned>(block.n_threads)},
                                                       .shared_bytes = kSplitBytes + block.n_bytes,
                                                       .cluster = size});
    };
    const int n = choose_cluster(params, query_tiles, options.n_splits, n_resident);
    if (n == 0) return;
    plan = plan_splits<Pipeline>(params, {.n_splits = n});
    plan.cluster = n, plan.overlaps = true, plan.n_blocks = static_cast<int>(n * query_tiles), plan.n_counters = 0;
  });
  return plan;
}

/// See short_end.cuh.
template <class T>
void run_short_end(const DecodeParams& params, const DeviceOutput& output, const LaunchPlan& plan,
                   const Workspace& workspace, Stream stream) {
  if (params.n_rows() == 0) return;
  with_pipeline<T>(params, [&](auto pipeline) {
    using Pipeline = typename decltype(pipeline)::type;
    run_splits<Pipeline>(short_end<Pipeline>, params, output, plan, workspace, stream);
  });
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
