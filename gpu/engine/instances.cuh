// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The launches of the library kernels for one stored type: which thread group, how many blocks (section 6).
///
/// Only sources that CMake writes include it, one for each order of leaves and type: each includer compiles the kernels that
/// it calls.
#pragma once

#include "gpu/engine/equal_runs.cuh"
#include "gpu/engine/one_shot.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// One block a multiprocessor, in clusters. A batch of one has query tiles of one length: then a few multiprocessors are
/// left idle if that saves every thread group a second run, at whose beginning its ring is empty.
inline std::int64_t choose_clusters(const DecodeParams& params, std::int64_t n_query_tiles, int cluster) {
  const std::int64_t n = device().n_multiprocessors / cluster,
                     even = n_query_tiles == 0 ? 0 : n / n_query_tiles * n_query_tiles;
  return params.batch == 1 && even * 10 >= n * 9 ? even : n;
}

/// Plans the number of blocks and their kind.
template <class T, class Params>
LaunchPlan plan_equal_runs(const Params& params, const LaunchOptions& options) {
  LaunchPlan plan;
  with_pipeline<T>(params, [&](auto pipeline) {
    using Pipeline = typename decltype(pipeline)::type;
    using ThreadGroup = typename Pipeline::ThreadGroup;
    const BlockSize block = fit_block<Pipeline>(params);
    plan.cluster = block.n_blocks;
    plan.n_row_tiles = std::max(plan.cluster, row_tiles<ThreadGroup>(params, block.n_threads));
    const std::int64_t n = n_query_tiles<ThreadGroup>(params, plan.n_row_tiles);
    plan.n_threads = block.n_threads;
    plan.n_stages = block.n_stages;
    plan.overlaps = device().major >= 9;
    plan.path = IsTensorTile<ThreadGroup> ? "tensor" : "scalar";
    const std::int64_t n_clusters =
        options.n_splits > 0 && n > 0 ? options.n_splits * n : choose_clusters(params, n, plan.cluster);
    plan.n_blocks = static_cast<int>(n_clusters) * plan.cluster;
    plan.n_splits =
        options.n_splits > 0 ? options.n_splits : static_cast<int>((n_clusters + n - 1) / std::max<std::int64_t>(1, n));
    plan.shared_bytes = kKernelBytes + block.n_bytes;
    plan.unit_log = options.unit_log;
    const UnitMemory memory = unit_memory<Pipeline>(params, plan, true, nullptr);
    const std::int64_t items = most_items<Pipeline>(params, plan, memory);
    plan.n_floats = memory.first_unit + items * memory.n_rows * memory.n_state;
    if (plan.n_floats / 4 > kMostWorkItems) throw DeviceError("states of units in more than 64 GiB");
    // As many warps as have eight units each.
    const std::int64_t of_row = std::min(params.most_slots(), items / std::max<std::int64_t>(1, n));
    while (plan.n_combining < kMostCombining && plan.n_combining * kAtOnce < of_row) plan.n_combining *= 2;
    const auto fits = [&](int n_warps) {
      return kKernelBytes + combining_bytes(n_warps, memory.n_parked) <= device().shared_bytes;
    };
    while (plan.n_combining > 1 && !fits(plan.n_combining)) plan.n_combining /= 2;
  });
  return plan;
}

/// Calls f with the tile that replaces sums which are not finite, or NoTile.
template <class T, class Params, class F>
void with_replacing_tile(const Params& params, const F& f) {
  with_pipeline<T>(params, [&](auto pipeline) {
    f(std::type_identity<typename ReplacingTile<typename decltype(pipeline)::type::ThreadGroup>::Type>{});
  });
}
template <class T, class Params>
void run_combine(const Params& params, const UnitMemory& memory, const DeviceOutput& output, const LaunchPlan& plan,
                 Stream stream) {
  const std::int64_t n_subtrees = output.out != nullptr ? 1 : params.n_subtrees_of_shard();
  if (n_subtrees == 0) return;
  with_replacing_tile<T>(params, [&](auto tile) {
    launch(combine<typename decltype(tile)::type, Params>, launch_of_combine(params, memory, plan, n_subtrees), stream,
           params, memory, output);
  });
}
template <class T>
void run_exchange(const DecodeParams& params, const UnitMemory& memory, const Peers& peers, const DeviceOutput& result,
                  const LaunchPlan& plan, Stream stream) {
  with_replacing_tile<T>(params, [&](auto tile) {
    launch(exchange_states<typename decltype(tile)::type>, launch_of_exchange(params, memory, plan, peers), stream, params,
           memory, peers, result);
  });
}

/// Launches the walks that were planned.
template <class T, class Params>
UnitMemory run_units(const Params& params, bool is_whole, const LaunchPlan& plan, const Workspace& workspace,
                     Stream stream) {
  UnitMemory memory;
  with_pipeline<T>(params, [&](auto pipeline) {
    using Pipeline = typename decltype(pipeline)::type;
    memory = unit_memory<Pipeline>(params, plan, is_whole, workspace.floats);
    launch(decode_units<Pipeline>,
           {.grid = {static_cast<unsigned>(plan.n_blocks)},
            .block = {static_cast<unsigned>(plan.n_threads)},
            .shared_bytes = plan.shared_bytes,
            .cluster = plan.cluster,
            .overlaps = plan.overlaps},
           stream, params, memory, Pipeline::arguments(params, plan));
  });
  return memory;
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
