// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The worker for a shape, a team of lanes or a warp on tensor cores, and how it walks over a run.
#pragma once

#include "gpu/ring.cuh"
#include "gpu/teams.hpp"
#include "gpu/tensor_climb.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// How a kind of worker walks over a run: what the library kernel asks of it.
template <class Worker>
struct Walk;

/// Teams, with a ring of three stages. Wider rows take more of the ring, so fewer threads.
template <class T, int kLanes, int kChunks>
struct Walk<Team<T, kLanes, kChunks>> {
  using Worker = Team<T, kLanes, kChunks>;
  static constexpr int kStages = 3, kThreads = 256 / kChunks;
  static constexpr std::int64_t kPieces = LaneRing<Worker>::n_bytes(kStages, kThreads) / sizeof(Bytes16);

  /// @param forests of the worker, one a slot, n_forest floats each
  /// @param memory [kPieces], of the whole block
  __device__ static __forceinline__ void walk(const DeviceProblem& problem, std::int64_t line, std::int64_t first_row, Run run,
                                              float* forests, std::int64_t, bool aligned, Shared<Bytes16> memory) {
    climb_over_ring<Worker, kStages>(problem, line, first_row, run, forests, aligned, LaneRing<Worker>(memory));
  }
};

/// Warps on tensor cores, each with shared memory of its own: as many as registers and shared memory allow.
template <class T, int kDim, int kTiles>
struct Walk<WarpTile<T, kDim, kTiles>> {
  using Worker = WarpTile<T, kDim, kTiles>;
  static constexpr int kFit = static_cast<int>((227 * 1024 - 128) / (kTilePieces<Worker> * sizeof(Bytes16)));
  static constexpr int kStages = TileRing<Worker>::kStages, kThreads = (kFit < Worker::kWarps ? kFit : Worker::kWarps) * kWarp;
  static constexpr std::int64_t kPieces = kThreads / kWarp * kTilePieces<Worker>;

  __device__ static __forceinline__ void walk(const DeviceProblem& problem, std::int64_t line, std::int64_t first_row, Run run,
                                              float* forests, std::int64_t n_forest, bool aligned, Shared<Bytes16> memory) {
    climb_tiles<Worker>(problem, line, first_row, run, forests, n_forest, aligned,
                        memory + static_cast<int>(threadIdx.x) / kWarp * kTilePieces<Worker>);
  }
};

/// Calls f with the smallest tile for a shape. Rows of 256 numbers leave registers for 8 queries only.
template <class T, class F>
void with_tile(const DeviceProblem& problem, const F& f) {
  const int d = std::max(problem.d_h, problem.d_v);
  const auto with_tiles = [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    if constexpr (kDim < 256) {
      if (problem.group > 8) return f(WarpTile<T, kDim, 2>{});
    }
    f(WarpTile<T, kDim, 1>{});
  };
  if (d <= 64) return with_tiles(std::integral_constant<int, 64>{});
  if (d <= 128) return with_tiles(std::integral_constant<int, 128>{});
  with_tiles(std::integral_constant<int, 256>{});
}

/// Calls f with the worker of the library kernel.
template <class T, class F>
void with_worker(const DeviceProblem& problem, const F& f) {
  if constexpr (sizeof(T) == 2) {
    if (multiplies_on_tensor_cores(problem, kStorageOf<T>)) return with_tile<T>(problem, f);
  }
  with_team<T>(problem, f);
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
