// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The launch of the kernel for short sequences for one stored type (section 6).
#pragma once

#include "gpu/parts/short_end.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// See short_end.cuh.
template <class T>
bool plan_short_end(const DecodeParams& params, const LaunchOptions& options, LaunchPlan& plan) {
  bool is_short = false;
  with_pipeline<T>(params, [&](auto pipeline) {
    using Pipeline = typename decltype(pipeline)::type;
    using Worker = typename Pipeline::Worker;
    const std::int64_t query_tiles = n_query_tiles<Worker>(params);
    const BlockSize block = fit_block<Pipeline>();
    const bool fits = ShortEnd<Pipeline>::kFloats <= block.n_scratch_floats;
    const auto n_resident = [&block](int size) {
      return n_resident_clusters(short_end<Pipeline>, {.grid = {static_cast<unsigned>(size)},
                                                       .block = {static_cast<unsigned>(block.n_threads)},
                                                       .shared_bytes = block.n_bytes,
                                                       .cluster = size});
    };
    const int n = fits ? choose_cluster(params, query_tiles, options.n_splits, n_resident) : 0;
    if (n == 0 || query_tiles > 65535) return;
    is_short = true;
    plan = {.n_splits = n, .n_threads = block.n_threads, .n_stages = block.n_stages, .cluster = n};
    plan.n_blocks = static_cast<int>(n * query_tiles);
    plan.shared_bytes = block.n_bytes;
    plan.n_floats =
        query_tiles * SplitWorkspace::of<Worker>(params, n, n_workers_of<Worker>(block.n_threads), nullptr).n_floats();
    plan.path = multiplies_on_tensor_cores(params, DTypeTraits<T>::kDType) ? "tensor" : "scalar";
  });
  return is_short;
}

/// See short_end.cuh.
template <class T>
void run_short_end(const DecodeParams& params, const DeviceOutput& output, const LaunchPlan& plan,
                   const Workspace& workspace, Stream stream) {
  if (params.n_rows() == 0) return;
  with_pipeline<T>(params, [&](auto pipeline) {
    using Pipeline = typename decltype(pipeline)::type;
    using Worker = typename Pipeline::Worker;
    const Launch config{.grid = {static_cast<unsigned>(plan.n_splits), static_cast<unsigned>(n_query_tiles<Worker>(params))},
                        .block = {static_cast<unsigned>(plan.n_threads)},
                        .shared_bytes = plan.shared_bytes,
                        .cluster = plan.cluster,
                        .overlaps = true};
    launch(short_end<Pipeline>, config, stream, params, output, Pipeline::arguments(params, plan.n_stages),
           SplitWorkspace::of<Worker>(params, plan.n_splits, n_workers_of<Worker>(plan.n_threads), workspace.floats));
  });
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
