// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The worker for a shape, a team of lanes or a warp on tensor cores, and its way to keys and values.
#pragma once

#include <type_traits>

#include "gpu/parts/forests.cuh"
#include "gpu/parts/ring.cuh"
#include "gpu/parts/teams.hpp"
#include "gpu/parts/tensor_climb.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// What the library kernel is made of: a kind of worker and its way to keys and values. All threads of a block make one, at the
/// start, and call it for every run of the block.
template <class Walk>
concept IsPipeline = IsWorker<typename Walk::Worker> && requires(Walk walk, const DeviceProblem& problem, std::int64_t i, Run run,
                                                                 float* forests, bool aligned) {
  { Walk::kIsCompiled } -> std::convertible_to<bool>;           // for this architecture
  { Walk::kThreads } -> std::convertible_to<int>;               // of a block
  { Walk::kWorkers } -> std::convertible_to<int>;               // of a block, that accumulate
  { Walk::kStages } -> std::convertible_to<int>;                // copies in flight
  { Walk::kBytes } -> std::convertible_to<std::size_t>;         // of shared memory
  { walk.scratch() } -> std::same_as<Scratch>;                  // shared memory that is free between two runs
  walk(problem, /*line*/ i, /*first_row*/ i, run, forests, /*n_forest*/ i, aligned);
};

/// Teams that copy for themselves, rows of any length and alignment: a ring of three stages. Bulk copies by a producer (step 8)
/// were no faster on an H200 once the arithmetic was short, and take aligned rows only. Wider rows take more of it, so
/// fewer threads.
template <IsSubWarp Team>
class RingWalk {
 public:
  using Worker = Team;
  static constexpr bool kIsCompiled = true;
  static constexpr int kStages = 3, kThreads = 256 / Team::kChunks, kWorkers = kThreads / Team::kLanes;
  static constexpr std::size_t kBytes = LaneRing<Team>::n_bytes(kStages, kThreads);

  __device__ __forceinline__ explicit RingWalk(Arena& arena) : memory_(arena.take<Bytes16>(kBytes / sizeof(Bytes16))) {}
  /// Shared memory that is free between two runs.
  __device__ __forceinline__ Scratch scratch() const { return {shared_as<float>(memory_), static_cast<int>(kBytes / sizeof(float))}; }
  /// Walks over a run of positions, each worker over its part.
  /// @param forests of the workers, each with one a slot; n_forest floats each
  __device__ __forceinline__ void operator()(const DeviceProblem& problem, std::int64_t line, std::int64_t first_row, Run run,
                                             float* forests, std::int64_t n_forest, bool aligned) {
    const int worker = static_cast<int>(threadIdx.x) / Team::kLanes;
    climb_over_ring<Team, kStages>(problem, line, first_row, part_of(run, worker, kWorkers), forests + worker * n_forest, aligned,
                                   LaneRing<Team>(memory_));
  }

 private:
  Shared<Bytes16> memory_;
};

/// A number that is the same in all lanes of a warp, and that the compiler knows to be: it may stay in a register of the warp.
template <class T>
__device__ __forceinline__ T of_warp(T x) { return __shfl_sync(kAllLanes, x, 0); }

/// Warps on tensor cores, each with shared memory of its own: as many as registers and shared memory allow.
template <IsMmaTile Tile>
class TileWalk {
 public:
  using Worker = Tile;
  static constexpr int kFit = static_cast<int>((227 * 1024 - 3 * 128) / (kTilePieces<Tile> * sizeof(Bytes16)));
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  static constexpr bool kIsCompiled = Tile::kDim < 128 || Tile::kTiles == 1;
#else
  static constexpr bool kIsCompiled = true;
#endif
  static constexpr int kStages = TileRing<Tile>::kStages, kWorkers = kFit < Tile::kWarps ? kFit : Tile::kWarps;
  static constexpr int kThreads = kWorkers * kWarp;
  static constexpr std::size_t kBytes = kWorkers * kTilePieces<Tile> * sizeof(Bytes16);

  __device__ __forceinline__ explicit TileWalk(Arena& arena) : memory_(arena.take<Bytes16>(kBytes / sizeof(Bytes16))) {}
  __device__ __forceinline__ Scratch scratch() const { return {shared_as<float>(memory_), static_cast<int>(kBytes / sizeof(float))}; }
  __device__ __forceinline__ void operator()(const DeviceProblem& problem, std::int64_t line, std::int64_t first_row, Run run,
                                             float* forests, std::int64_t n_forest, bool aligned) {
    const int worker = of_warp(static_cast<int>(threadIdx.x) / kWarp);
    const Run own = part_of(run, worker, kWorkers);
    climb_tiles<Tile>(problem, of_warp(line), of_warp(first_row), {of_warp(own.begin), of_warp(own.end)},
                      forests + worker * Tile::kSlots * n_forest, n_forest, aligned, memory_ + worker * kTilePieces<Tile>);
  }

 private:
  Shared<Bytes16> memory_;
};

/// Calls f with the smallest tile for a shape. Rows of 256 numbers leave registers for 8 queries only, and so do rows of 128
/// before compute capability 9. How many queries a tile has changes no bit of any.
template <class T, class F>
void with_tile(const DeviceProblem& problem, const F& f) {
  const int d = std::max(problem.d_h, problem.d_v);
  const auto with_tiles = [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    if constexpr (kDim < 256) {
      if (problem.group > 8 && (kDim == 64 || device().major >= 9)) return f(WarpTile<T, kDim, 2>{});
    }
    f(WarpTile<T, kDim, 1>{});
  };
  if (d <= 64) return with_tiles(std::integral_constant<int, 64>{});
  if (d <= 128) return with_tiles(std::integral_constant<int, 128>{});
  with_tiles(std::integral_constant<int, 256>{});
}

/// Calls f with the walk of the library kernel. Which worker it is depends on type and shape alone, for it changes bits.
template <class T, class F>
void with_walk(const DeviceProblem& problem, const F& f) {
  if constexpr (DTypeTraits<T>::kUnit == KernelUnit::TensorCores) {
    if (multiplies_on_tensor_cores(problem, DTypeTraits<T>::kDType))
      return with_tile<T>(problem, [&](auto tile) { f(std::type_identity<TileWalk<decltype(tile)>>{}); });
  }
  with_team<T>(problem, [&](auto team) { f(std::type_identity<RingWalk<decltype(team)>>{}); });
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
