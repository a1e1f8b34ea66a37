// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What kernels are templates over, as concepts: workers and rows.
#pragma once

#include "gpu/parts/decode_params.hpp"
#include "gpu/platform/bytes16.hpp"
#include "gpu/platform/device.hpp"

#include <concepts>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Lanes of a warp, and all of them as a mask.
inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFF;

/// A number that is the same in all lanes of a warp, and that the compiler knows to be: it may stay in a register of the
/// warp.
template <class T>
__device__ __forceinline__ T warp_uniform(T x) {
  return __shfl_sync(kAllLanes, x, 0);
}

/// Shared memory that a block may have on the smallest and the largest devices: 99 KiB on consumer devices of compute
/// capability 8 and 12, 227 KiB on 9 and 10.
inline constexpr std::size_t kLeastSharedBytes = 99 * 1024, kMostSharedBytes = 227 * 1024;

/// Whether all devices of this architecture leave room for the largest block, so that its size is a constant in kernels. It
/// saves registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
inline constexpr bool kFitsLargestBlock = true;
#else
inline constexpr bool kFitsLargestBlock = false;
#endif

/// A worker: kLanes lanes that take a range of positions for kRows queries and leave a forest. A lane holds, in each of its
/// kSlots, kElements components of the state of one of them.
template <class Worker>
concept IsWorker = requires(int lane, int slot, int c) {
  typename Worker::T;  // of the stored elements
  { Worker::kLanes } -> std::convertible_to<int>;
  { Worker::kRows } -> std::convertible_to<int>;
  { Worker::kSlots } -> std::convertible_to<int>;
  { Worker::kElements } -> std::convertible_to<int>;
  { Worker::row(lane, slot) } -> std::same_as<int>;  // which of the kRows queries a slot is about
  { Worker::place(lane) } -> std::same_as<int>;      // where a lane has its part of a state; those of a query side by side
  { Worker::lane_at(lane) } -> std::same_as<int>;    // the lane of a place
  { Worker::component(lane, c) } -> std::same_as<int>;  // which element of a row component c is
};

/// The lane of a thread in its worker, and the number of that in its block. Threads are counted without a sign here, so that
/// the compiler knows these numbers to be small and not negative.
template <IsWorker Worker>
__device__ __forceinline__ int lane_of(unsigned thread) {
  return static_cast<int>(thread % Worker::kLanes);
}
template <IsWorker Worker>
__device__ __forceinline__ int worker_of(unsigned thread) {
  return static_cast<int>(thread / Worker::kLanes);
}

/// The queries of a tile of kRows that begins with a row of a group: the last tile of a group may have fewer. The others are
/// padding: their states are neither stored nor joined.
template <IsWorker Worker, class Params>
__device__ __forceinline__ int rows_in_use(const Params& params, std::int64_t first_row) {
  const std::int64_t n_left = params.group - first_row;
  return n_left < Worker::kRows ? static_cast<int>(n_left) : Worker::kRows;
}

/// A worker that is a part of a warp, serves one query, and reads kVectorsPerLane times 16 bytes of a row per lane.
template <class SubWarp>
concept IsSubWarp = IsWorker<SubWarp> && SubWarp::kRows == 1 && SubWarp::kSlots == 1 && kWarp % SubWarp::kLanes == 0 &&
                    SubWarp::kVectorsPerLane >= 1;

/// A worker that is a warp on tensor cores: rows of kDim elements of 16 bits in kSteps steps of 16 and kBoxes boxes of 64,
/// kRows queries with kColumns columns of a product each.
template <class Tile>
concept IsMmaTile =
    IsWorker<Tile> && sizeof(typename Tile::T) == 2 && Tile::kLanes == kWarp&& Tile::kRows* Tile::kColumns == 8 &&
    Tile::kSlots* Tile::kColumns == 2 && Tile::kDim == 16 * Tile::kSteps&& Tile::kDim == 64 * Tile::kBoxes;

/// In place of the tensor maps of a ring that needs none.
struct NoMaps {};

/// Rows of keys or values: (i, vector) -> 16 bytes of row i for this lane.
template <class Rows>
concept IsRows = requires(const Rows& rows, int i, int vector) {
  { rows(i, vector) } -> std::same_as<Bytes16>;
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
