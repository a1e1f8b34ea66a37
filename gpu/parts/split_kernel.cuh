// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The kernels with splits: a pipeline walks over the splits of a query tile, and one block joins them (section 5,
/// Alg. 3).
///
/// Kernels differ in the pipeline, and in the end, which says where the splits lie and which block joins them.
#pragma once

#include "gpu/parts/join.cuh"
#include "gpu/parts/pipelines.hpp"
#include "gpu/parts/splits.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// A block of a kernel with splits. Grid: splits, query tiles. The merges and their order follow from the lengths alone.
/// @param forests see SplitWorkspace @param more what the end takes
/// @paper{alg_3, Alg. 3}
template <IsPipeline Pipeline, class End, class... More>
__device__ __forceinline__ void split_block(const DecodeParams& params, const DeviceOutput& output,
                                            const typename Pipeline::Arguments& arguments, const SplitWorkspace& forests,
                                            More... more) {
  using Worker = typename Pipeline::Worker;
  Arena arena;
  const End end(arena, forests, more...);
  Pipeline pipeline(arena, arguments);
  const Count query_tile = blockIdx.y;
  const QueryTile tile = QueryTile::of<Worker>(params, query_tile);
  const int split = static_cast<int>(blockIdx.x), n_splits = forests.n_splits;
  const KeyRange whole = params.leaves(tile.kv_head), range = split_range(whole, split, n_splits);
  const int n_rows = rows_in_use<Worker>(params, tile.first_row);

  // Every worker walks over its part of the split; the block joins them.
  pipeline(params, tile.kv_head, tile.first_row, range, forests.of_worker(query_tile, split, 0), forests.n_worker);
  __syncthreads();
  const Scratch all = pipeline.scratch(), scratch = End::rest(all);
  join_splits<Worker>(scratch, n_rows, forests.of_worker(query_tile, split, 0), forests.n_worker, range, forests.n_workers,
                      [&](const auto& column, const auto& roots) { end.keep(column, roots, all); });

  // One block joins the splits, and writes the rows.
  if (end.joins()) {
    join_parts<Worker>(
        scratch, n_rows, whole, n_splits, [whole, n_splits](int i) { return split_range(whole, i, n_splits); },
        [&](const auto& column, int i, int j, const auto& states, int place) { end.copy(column, i, j, states, place, all); },
        [&](const auto& column, const auto& roots) {
          write_output<Worker>(params, output, tile.kv_head, tile.first_row, column, roots, whole);
        });
  }
  end.done();
}

/// Shared memory of a kernel with splits beside that of its pipeline.
inline constexpr std::size_t kSplitBytes = 128;

/// The plan of a kernel with splits: what was asked for, else what fills the device.
template <IsPipeline Pipeline>
LaunchPlan plan_splits(const DecodeParams& params, const LaunchOptions& options) {
  using Worker = typename Pipeline::Worker;
  const std::int64_t query_tiles = n_query_tiles<Worker>(params);
  const BlockSize block = fit_block<Pipeline>();
  const int n_workers = n_workers_of<Worker>(block.n_threads);
  LaunchPlan plan{
      .n_threads = block.n_threads, .n_stages = block.n_stages, .n_counters = query_tiles, .path = kPath<Worker>};
  plan.n_splits = options.n_splits > 0 ? options.n_splits : choose_splits(params, query_tiles, n_workers);
  plan.shared_bytes = kSplitBytes + block.n_bytes;
  plan.n_floats = query_tiles * SplitWorkspace::of<Worker>(params, plan.n_splits, n_workers, nullptr).n_floats();
  return plan;
}

/// Launches a kernel that plan_splits() has planned. @param arguments of its pipeline @param more what it takes after the
/// workspace
template <IsPipeline Pipeline, class Kernel, class... More>
void launch_splits(const Kernel& kernel, const DecodeParams& params, const DeviceOutput& output,
                   const typename Pipeline::Arguments& arguments, const LaunchPlan& plan, const Workspace& workspace,
                   Stream stream, More... more) {
  using Worker = typename Pipeline::Worker;
  Launch config{.grid = {static_cast<unsigned>(plan.n_splits), static_cast<unsigned>(n_query_tiles<Worker>(params))},
                .block = {static_cast<unsigned>(plan.n_threads)},
                .shared_bytes = plan.shared_bytes};
  if (plan.cluster > 0) config.cluster = plan.cluster, config.overlaps = plan.overlaps;
  launch(kernel, config, stream, params, output, arguments,
         SplitWorkspace::of<Worker>(params, plan.n_splits, n_workers_of<Worker>(plan.n_threads), workspace.floats), more...);
}
/// The same with the arguments that the pipeline has by itself.
template <IsPipeline Pipeline, class Kernel, class... More>
void run_splits(const Kernel& kernel, const DecodeParams& params, const DeviceOutput& output, const LaunchPlan& plan,
                const Workspace& workspace, Stream stream, More... more) {
  launch_splits<Pipeline>(kernel, params, output, Pipeline::arguments(params, plan.n_stages), plan, workspace, stream,
                          more...);
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
