// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The library kernel: equal runs of units over all thread groups of the device (section 5, Alg. 3).
///
/// A block is not one split of one query. The units of all query tiles of the batch form one sequence, and each
/// *taker*, a warp, a team or a block, takes a part of it, wherever that begins and ends (units.hpp). So neither 16 heads on
/// 132 multiprocessors nor one long sequence among short ones leave a multiprocessor idle: all end within a unit of each
/// other. A second launch combines the states (combine.cuh). One kernel for all shapes: tensor cores for 16 and 8 bits in
/// values of up to 512 elements, scalar cores, with the bits of the CPU, for all else and for a portable result.
#pragma once

#include "gpu/engine/combine.cuh"
#include "gpu/engine/pipelines.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Decodes units: the walks of the library, after which combine() does the rest.
/// @tparam Pipeline a kind of thread group and its way to keys and values
/// - Grid: at most a block for each multiprocessor, in whole clusters, or as many clusters as the options of the plan ask
/// for.
/// - Block: the threads that the plan of the pipeline says, at most Pipeline::kThreads.
/// - Reads: queries, keys, values, lengths.
/// - Writes: a state for each unit and row.
///
/// Every warp works out its first run by itself, and starts its first copies before the launch before this one has ended,
/// see begin_early().
/// @paper{alg_3, Alg. 3}
template <IsPipeline Pipeline>
__global__ void __launch_bounds__(Pipeline::kThreads, 1)
    decode_units(typename Pipeline::Params params, const __grid_constant__ UnitMemory memory,
                 const __grid_constant__ typename Pipeline::Arguments arguments) {
  if constexpr (Pipeline::kIsCompiled) {
    launch_dependents();
    Arena arena;
    Pipeline pipeline(arena, arguments);
    // Keep the position of a warp between two runs in shared memory: the walk takes all registers.
    const int lane = static_cast<int>(threadIdx.x % kWarp), warp = warp_uniform(static_cast<int>(threadIdx.x / kWarp));
    const Shared<Count> kept = arena.take<Count>(5 * static_cast<int>(blockDim.x / kWarp)) + 5 * warp;
    {
      const Division all(params, memory.rule, memory.log_rows, WarpScan{});
      const int n_takers = Pipeline::n_takers(static_cast<int>(blockDim.x), memory.n_row_tiles);
      // Blocks of a cluster take the same run.
      const Count n_clusters = gridDim.x >> pipeline.log_blocks(), cluster = blockIdx.x >> pipeline.log_blocks();
      const EqualRuns runs{all.n_items(params, Count(params.batch), WarpScan{}), n_clusters * Count(n_takers)};
      const Count taker = runs.taker(cluster, Count(warp_uniform(pipeline.taker())), n_clusters);
      if (lane == 0) {
        kept[0] = Count(all.log()), kept[1] = runs.begin_of(taker), kept[2] = runs.begin_of(taker + 1);
        kept[3] = kept[4] = 0;
      }
      __syncwarp();
    }
    TREE_ATTN_LOOP
    while (kept[1] < kept[2]) {
      const Division all(params, memory.rule, memory.log_rows, warp_uniform(int(kept[0])));
      const UnitRun run = all.run_at(params, warp_uniform(Count(kept[1])), kept[2], {kept[3], kept[4]}, WarpScan{});
      __syncwarp();
      if (lane == 0) kept[1] = run.last, kept[3] = run.found.entry, kept[4] = run.found.first;
      pipeline.walk(params, run, memory);
      __syncwarp();
      if (kept[1] < kept[2]) pipeline.renew();
    }
    wait_for_previous_launch();
  }
}

/// Bytes of the keys and values of a leaf.
template <class Params>
std::int64_t bytes_of_leaf(const Params& params, std::int64_t element) {
  const bool in_keys = params.k.data == params.v.data && params.k.data != nullptr;
  return kLeafKeys * (params.d_h + (in_keys ? 0 : params.d_v)) * element;
}

/// Bytes of an element as stored.
template <IsThreadGroup ThreadGroup>
inline constexpr std::int64_t kStoredBytes = sizeof(typename ThreadGroup::T);
template <IsTensorTile Tile>
inline constexpr std::int64_t kStoredBytes<Tile> = sizeof(typename Tile::Stored);

/// The memory of a step, on the host.
template <IsPipeline Pipeline>
UnitMemory unit_memory(const typename Pipeline::Params& params, const LaunchPlan& plan, bool is_whole, float* floats) {
  using ThreadGroup = typename Pipeline::ThreadGroup;
  UnitMemory memory{
      .log_rows = log_rows_of<ThreadGroup>(plan.n_row_tiles), .n_row_tiles = plan.n_row_tiles, .floats = floats};
  memory.n_rows = Count(std::min<std::int64_t>(params.group, std::int64_t{1} << memory.log_rows));
  memory.n_state = Count(UnitMemory::kFirstComponent + (params.d_v + 3) / 4 * 4);
  const int n_groups = plan.n_threads / ThreadGroup::kLanes;  // of a block
  const std::int64_t n_thread_groups = std::int64_t{plan.n_blocks} * n_groups,
                     n_tiles = n_query_tiles<ThreadGroup>(params, plan.n_row_tiles), most_slots = params.most_slots();
  UnitRule& rule = memory.rule;
  rule.is_whole = is_whole;
  if (plan.unit_log >= 0) {
    rule.least_log = plan.unit_log, rule.most_items = std::numeric_limits<Count>::max(), rule.n_blocks = 0;
  } else {
    // All rows of a kv head have states, however often query tiles read its keys again.
    const std::int64_t of_states = 8 * params.group * memory.n_state * std::int64_t{sizeof(float)},
                       of_leaf = bytes_of_leaf(params, kStoredBytes<ThreadGroup>);
    while (rule.least_log < 31 && of_states > of_leaf << rule.least_log) ++rule.least_log;
    const int n_clusters = plan.n_blocks / plan.cluster;
    rule.n_takers = Count(n_clusters * Pipeline::n_takers(plan.n_threads, plan.n_row_tiles));
    rule.most_items = 4 * rule.n_takers;
    rule.n_blocks = Count(n_clusters);
  }
  // c of full capacity, which no other lengths exceed.
  int most_log = rule.least_log;
  while (most_log < 31 && n_tiles * (most_slots >> most_log) > rule.most_items) ++most_log;
  memory.n_stack = Count(most_log * kStackEntry<ThreadGroup>);
  memory.n_parked = std::max(kMostParked, most_log + 2);
  memory.first_unit = n_thread_groups * ThreadGroup::kLaneQueries * memory.n_stack;
  return memory;
}
/// Work items that a step may have.
template <IsPipeline Pipeline>
std::int64_t most_items(const typename Pipeline::Params& params, const LaunchPlan& plan, const UnitMemory& memory) {
  const std::int64_t n_tiles = n_query_tiles<typename Pipeline::ThreadGroup>(params, plan.n_row_tiles),
                     of_ends = n_tiles * (3 + params.n_subtrees_of_shard());
  const UnitRule& rule = memory.rule;
  // Uneven runs ask for four times as many, but not for smaller units than the states allow.
  const std::int64_t of_runs = std::min<std::int64_t>(4 * std::int64_t{rule.most_items},
                                                      n_tiles * (params.most_slots() >> rule.least_log)),
                     most = std::max<std::int64_t>(of_runs, 2 * std::int64_t{rule.n_blocks}) + of_ends;
  return std::min(most, n_tiles * (params.most_slots() + 2));
}

/// Plans a step, or launches its walks, for every shape of one stored type, in either order of leaves: DecodeParams or
/// ListedParams. Types and orders are compiled in files of their own.
/// @returns where the states of units lie
template <class T, class Params>
LaunchPlan plan_equal_runs(const Params& params, const LaunchOptions& options);
template <class T, class Params>
UnitMemory run_units(const Params& params, bool is_whole, const LaunchPlan& plan, const Workspace& workspace, Stream stream);

/// Plans a step, or launches it, for the type at hand. A plan holds for any lengths, and for any contents of the lists.
/// @pre the step takes the shape
/// @throws DeviceError if the launch fails
template <class Params>
LaunchPlan plan_equal_runs(const Params& params, DType dtype, const LaunchOptions& options) {
  LaunchPlan plan;
  with_type(dtype, [&](auto type) { plan = plan_equal_runs<decltype(type)>(params, options); });
  return plan;
}
template <class Params>
void run_equal_runs(const Params& params, DType dtype, const DeviceOutput& output, const LaunchPlan& plan,
                    const Workspace& workspace, Stream stream) {
  if (params.n_rows() == 0) return;
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    const UnitMemory memory = run_units<T>(params, output.out != nullptr, plan, workspace, stream);
    run_combine<T>(params, memory, output, plan, stream);
  });
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
