// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Step 7 of the ladder: queries that share keys, together on tensor cores (section 6.3, grouped heads).
///
/// What changed: a warp serves up to 16 queries of one key/value head, and multiplies on tensor cores. Keys and values come
/// through a ring of copies, as in step 6, but lanes read what others have copied: a barrier of the warp every 16 keys.
/// Bytes: every key and value is read once for 16 queries, where step 6 read it for each of them; of 32 query and 8 key/value
/// heads a quarter of the bytes is left. Time: a quarter, where memory is what it waits for; warp_tile.cuh counts the products.
/// For queries that share nothing 7 of 8 rows of a tile are empty: step 6 is for them.
/// Measured, H200, BF16, 32 heads on 8: 0.23, 0.47 and 0.65 of the rate of a kernel that only reads, at 8k, 64k and 1M keys, where
/// step 6 has 0.22, 0.21 and 0.21. What is left is chains of dependent instructions in two warps a scheduler, and more code than
/// the instruction cache likes.
#include "gpu/ladder/ladder.hpp"
#include "gpu/parts/forests.cuh"
#include "gpu/parts/last_block.cuh"
#include "gpu/parts/splits.hpp"
#include "gpu/parts/workers.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

/// Bytes of shared memory of one warp.
template <IsMmaTile Tile>
inline constexpr std::size_t kWarpBytes = kTilePieces<Tile> * sizeof(Bytes16);

/// Grid: splits, strips. @param forests see SplitWorkspace @param counters one a strip
template <IsMmaTile Tile>
__global__ void __launch_bounds__(Tile::kWarps * kWarp, 1) tensor(DeviceProblem problem, DeviceOutput output, bool aligned,
                                                                SplitWorkspace forests, unsigned* counters) {
  const std::int64_t strip = blockIdx.y, n_strips = (problem.group + Tile::kRows - 1) / Tile::kRows;
  const std::int64_t line = strip / n_strips, first_row = strip % n_strips * Tile::kRows;
  const auto self = WorkerThread::of<Tile>(static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  const int at = static_cast<int>(blockIdx.x);
  const Run whole = problem.padded(line), run = part_of(whole, at, forests.n_splits);
  Arena arena;
  const Shared<int> told = arena.take<int>(1);
  const Shared<Bytes16> shared = arena.take<Bytes16>(self.n_workers * kTilePieces<Tile>);
  const Scratch scratch{shared_as<float>(shared), self.n_workers * kTilePieces<Tile> * 4};

  // Climb, and join the warps of the block.
  climb_tiles<Tile>(problem, line, first_row, part_of(run, self.worker, self.n_workers), forests.of_worker(strip, at, self.worker), forests.n_worker,
                    aligned, shared + self.worker * kTilePieces<Tile>);
  __syncthreads();
  join<Tile>(scratch, forests.of_worker(strip, at, 0), forests.n_worker, run, self.n_workers, self,
             [&](int slot, const auto& forest) { keep<Tile>(forest, forests.of_split(strip, at) + slot * forests.n_split, self.lane); });

  // The last block joins the splits. Every warp has slots of its own.
  if (!arrives_last(counters + strip, gridDim.x, told)) return;
  join<Tile>(scratch, forests.of_split(strip, 0), forests.n_split, whole, forests.n_splits, self,
             [&](int slot, const auto& forest) { deliver<Tile>(problem, output, line, first_row, slot, forest, whole, self.lane); });
}

/// Calls f with the tile for a shape and a type that tensor cores multiply.
template <class F>
void with_tile_of(const DeviceProblem& problem, Storage storage, const F& f) {
  with_dtype(storage, [&]<class T>(T) {
    if constexpr (DTypeTraits<T>::kUnit == KernelUnit::TensorCores) with_tile<T>(problem, f);
  });
}

std::string accepts(const DeviceProblem& problem, Storage storage) {
  if (kernel_unit_of(storage) == KernelUnit::Scalar) return std::string(name_of(storage)) + " storage: no tensor core keeps its bits";
  if (problem.d_h > 256 || problem.d_v > 256)
    return "d_h " + std::to_string(problem.d_h) + ", d_v " + std::to_string(problem.d_v) + ": more than 256";
  return accepts_any_rows(problem, storage);
}

Plan plan(const DeviceProblem& problem, Storage storage, const PlanOptions& options) {
  Plan plan{.path = "tensor"};
  with_tile_of(problem, storage, [&](auto tile) {
    using Tile = decltype(tile);
    const std::int64_t strips = n_strips<Tile>(problem);
    const int fit = static_cast<int>((device().shared_bytes - 128) / kWarpBytes<Tile>);
    plan.n_threads = std::min(fit, Tile::kWarps) * kWarp;
    plan.n_splits = options.n_splits > 0 ? options.n_splits : choose_splits(problem, strips, n_workers_of<Tile>(plan.n_threads));
    plan.n_stages = TileRing<Tile>::kStages;
    plan.shared_bytes = 128 + n_workers_of<Tile>(plan.n_threads) * kWarpBytes<Tile>;
    plan.n_floats = strips * SplitWorkspace::of<Tile>(problem, plan, nullptr).n_floats();
    plan.n_counters = strips;
  });
  return plan;
}

void run(const DeviceProblem& problem, Storage storage, const DeviceOutput& output, const Plan& plan, const Workspace& workspace,
         Stream stream) {
  with_tile_of(problem, storage, [&](auto tile) {
    using Tile = decltype(tile);
    const Launch how{.grid = {static_cast<unsigned>(plan.n_splits), static_cast<unsigned>(n_strips<Tile>(problem))},
                     .block = {static_cast<unsigned>(plan.n_threads)},
                     .shared_bytes = plan.shared_bytes};
    launch(tensor<Tile>, how, stream, problem, output, starts_aligned(problem, storage),
           SplitWorkspace::of<Tile>(problem, plan, workspace.floats), workspace.counters);
  });
}

}  // namespace

const LadderStep kTensor{.name = "tensor", .brief = "grouped heads on tensor cores", .n_additions = tensor_additions, .accepts = accepts, .plan = plan, .run = run};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
