// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Step 7 of the ladder: queries that share keys, together on tensor cores (section 6.3, grouped heads).
///
/// What changed: a warp serves up to 16 queries of one key/value head, and multiplies on tensor cores. Keys and values come
/// through a ring of copies, as in step 6, but lanes read what others have copied: a barrier of the warp every 16 keys.
/// Bytes: every key and value is read once for 16 queries, where step 6 read it for each of them; of 32 query and 8
/// key/value heads a quarter of the bytes is left. Time: a quarter, where memory is what it waits for; mma_tile.cuh counts
/// the products. For queries that share nothing 7 of 8 rows of a tile are empty: step 6 is for them. Measured, H200, BF16,
/// 32 heads on 8: 0.23, 0.47 and 0.65 of the rate of a kernel that only reads, at 8k, 64k and 1M keys, where step 6 has
/// 0.22, 0.21 and 0.21. What is left is chains of dependent instructions in two warps a scheduler, and more code than the
/// instruction cache likes.
#include "gpu/ladder/ladder.hpp"
#include "gpu/parts/join.cuh"
#include "gpu/parts/last_block.cuh"
#include "gpu/parts/pipelines.hpp"
#include "gpu/parts/splits.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

/// Bytes of shared memory of one warp.
template <IsMmaTile Tile>
inline constexpr std::size_t kWarpBytes = kTileVectors<Tile> * sizeof(Bytes16);

/// Grid: splits, query tiles. @param forests see SplitWorkspace @param counters one a query tile
template <IsMmaTile Tile>
__global__ void __launch_bounds__(Tile::kWarps* kWarp, 1)
    tensor(DecodeParams params, DeviceOutput output, bool aligned, SplitWorkspace forests, unsigned* counters) {
  const std::int64_t query_tile = blockIdx.y, n_query_tiles = (params.group + Tile::kRows - 1) / Tile::kRows;
  const std::int64_t kv_head = query_tile / n_query_tiles, first_row = query_tile % n_query_tiles * Tile::kRows;
  const auto self = WorkerThread::of<Tile>(static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  const int split = static_cast<int>(blockIdx.x);
  const KeyRange whole = params.padded(kv_head), range = split_range(whole, split, forests.n_splits);
  Arena arena;
  const Shared<int> is_last = arena.take<int>(1);
  const Shared<Bytes16> shared = arena.take<Bytes16>(self.n_workers * kTileVectors<Tile>);
  const Scratch scratch{shared_as<float>(shared), self.n_workers * kTileVectors<Tile> * 4};

  // Accumulate, and join the warps of the block.
  accumulate_tiles<Tile>(params, kv_head, first_row, split_range(range, self.worker, self.n_workers),
                         forests.of_worker(query_tile, split, self.worker), forests.n_worker, aligned,
                         shared + self.worker * kTileVectors<Tile>);
  __syncthreads();
  join_splits<Tile>(scratch, forests.of_worker(query_tile, split, 0), forests.n_worker, range, self.n_workers, self,
                    [&](int slot, const auto& forest) {
                      store_forest<Tile>(forest, forests.of_split(query_tile, split) + slot * forests.n_split, self.lane);
                    });

  // The last block joins the splits. Every warp has slots of its own.
  if (!arrives_last(counters + query_tile, gridDim.x, is_last)) return;
  join_splits<Tile>(scratch, forests.of_split(query_tile, 0), forests.n_split, whole, forests.n_splits, self,
                    [&](int slot, const auto& forest) {
                      write_output<Tile>(params, output, kv_head, first_row, slot, forest, whole, self.lane);
                    });
}

/// Calls f with the tile for a shape and a type that tensor cores multiply.
template <class F>
void with_tile_of(const DecodeParams& params, DType dtype, const F& f) {
  with_dtype(dtype, [&]<class T>(T) {
    if constexpr (DTypeTraits<T>::kUnit == KernelUnit::TensorCores) with_tile<T>(params, f);
  });
}

std::string accepts(const DecodeParams& params, DType dtype) {
  if (kernel_unit_of(dtype) == KernelUnit::Scalar)
    return std::string(name_of(dtype)) + " storage: no tensor core keeps its bits";
  if (params.d_h > 256 || params.d_v > 256)
    return "d_h " + std::to_string(params.d_h) + ", d_v " + std::to_string(params.d_v) + ": more than 256";
  return accepts_any_rows(params, dtype);
}

LaunchPlan plan(const DecodeParams& params, DType dtype, const LaunchOptions& options) {
  LaunchPlan plan{.path = "tensor"};
  with_tile_of(params, dtype, [&](auto tile) {
    using Tile = decltype(tile);
    const std::int64_t query_tiles = n_query_tiles<Tile>(params);
    const int fit = static_cast<int>((device().shared_bytes - 128) / kWarpBytes<Tile>);
    plan.n_threads = std::min(fit, Tile::kWarps) * kWarp;
    plan.n_splits =
        options.n_splits > 0 ? options.n_splits : choose_splits(params, query_tiles, n_workers_of<Tile>(plan.n_threads));
    plan.n_stages = TileRing<Tile>::kStages;
    plan.shared_bytes = 128 + n_workers_of<Tile>(plan.n_threads) * kWarpBytes<Tile>;
    plan.n_floats = query_tiles * SplitWorkspace::of<Tile>(params, plan, nullptr).n_floats();
    plan.n_counters = query_tiles;
  });
  return plan;
}

void run(const DecodeParams& params, DType dtype, const DeviceOutput& output, const LaunchPlan& plan,
         const Workspace& workspace, Stream stream) {
  with_tile_of(params, dtype, [&](auto tile) {
    using Tile = decltype(tile);
    const Launch config{.grid = {static_cast<unsigned>(plan.n_splits), static_cast<unsigned>(n_query_tiles<Tile>(params))},
                        .block = {static_cast<unsigned>(plan.n_threads)},
                        .shared_bytes = plan.shared_bytes};
    launch(tensor<Tile>, config, stream, params, output, starts_aligned(params, dtype),
           SplitWorkspace::of<Tile>(params, plan, workspace.floats), workspace.counters);
  });
}

}  // namespace

const LadderStep kTensor{.name = "tensor",
                         .brief = "grouped heads on tensor cores",
                         .n_additions = tensor_additions,
                         .accepts = accepts,
                         .plan = plan,
                         .run = run};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
