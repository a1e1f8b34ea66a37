// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Kernels that copy keys and values to where a walk would use them, and compute nothing: the rate that a way to copy
/// leaves to the walk above it.
#pragma once

#include "gpu/engine/forest.cuh"
#include "gpu/platform/launch.hpp"

#include <cstdint>
#include <string>

namespace tree_attn::cuda {

/// Ways to copy. Each thread group has a contiguous run of the keys and the same run of the values, and takes pieces of them
/// in turns; a thread group is a warp, or for tensor maps a block.
enum class CopyWay {
  CpAsync,     ///< 16 bytes per lane, in a ring of shared memory per warp
  Bulk,        ///< 4 KiB started by one lane, in a ring per warp
  TensorMaps,  ///< two boxes of 64 rows x 64 elements started by one thread of the block, in a ring per block
};
constexpr const char* name_of(CopyWay way) {
  constexpr const char* kNames[] = {"cp.async", "bulk", "tensor map"};
  return kNames[static_cast<int>(way)];
}

/// Bytes that a warp copies at once: 16 rows of 128 elements of BF16. Rows and bytes that a tensor map copies at once.
inline constexpr int kCopyBytes = 4096, kCopyTileRows = 64, kCopyTileBytes = 64 * 256;

/// Streams of bytes to copy.
struct CopyStreams {
  const unsigned char *keys, *values;
  std::int64_t n_bytes;  ///< of each; a multiple of kCopyTileBytes
};

/// One way, in one shape.
struct CopyShape {
  CopyWay way;
  int kib_in_flight;  ///< per multiprocessor, with one block on each: 64, 96, 128, 160 or 192
  int n_blocks;
};

constexpr int kWarpsOfRing = 8;  ///< warps of a block that have a ring each
constexpr int kVectorsOfCopy = kCopyBytes / 16, kCopiedPerLane = kVectorsOfCopy / kWarp;

/// The part of the streams that a thread group copies: pieces of keys and of values in turns.
struct CopyRun {
  const unsigned char *keys, *values;
  int n_pieces;  ///< of both

  __device__ CopyRun(const CopyStreams& streams, int piece_bytes, int thread_group, int n_thread_groups) {
    const std::int64_t n = streams.n_bytes / piece_bytes, begin = n * thread_group / n_thread_groups,
                       end = n * (thread_group + 1) / n_thread_groups;
    keys = streams.keys + begin * piece_bytes, values = streams.values + begin * piece_bytes;
    n_pieces = static_cast<int>(2 * (end - begin));
  }
  __device__ const unsigned char* piece(int i, int piece_bytes) const {
    return (i % 2 == 0 ? keys : values) + static_cast<std::int64_t>(i / 2) * piece_bytes;
  }
};

__device__ inline int lane_of_warp() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline CopyRun run_of_warp(const CopyStreams& streams) {
  const int warps = static_cast<int>(blockDim.x) / kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  return {streams, kCopyBytes, static_cast<int>(blockIdx.x) * warps + warp, static_cast<int>(gridDim.x) * warps};
}

/// @tparam kStages of the ring, of which all but one are in flight
template <int kStages>
__global__ void __launch_bounds__(kWarp* kWarpsOfRing, 1) copy_by_cp_async(CopyStreams streams, unsigned* sum) {
  const CopyRun run = run_of_warp(streams);
  Arena arena;
  const Shared<Bytes16> ring = arena.take<Bytes16>(kWarpsOfRing * kStages * kVectorsOfCopy) +
                               static_cast<int>(threadIdx.x) / kWarp * kStages * kVectorsOfCopy;
  const auto start = [&](int i) {
    if (i < run.n_pieces) {
      TREE_ATTN_UNROLL
      for (int c = 0; c < kCopiedPerLane; ++c) {
        const int vector = kWarp * c + lane_of_warp();
        copy_async16(ring + (i % kStages * kVectorsOfCopy + vector), run.piece(i, kCopyBytes) + 16 * vector, 16);
      }
    }
    copy_async_commit();
  };
  for (int i = 0; i < kStages - 1; ++i) start(i);
  std::uint32_t firsts = 0;
  for (int i = 0; i < run.n_pieces; ++i) {
    copy_async_wait<kStages - 2>();
    __syncwarp();
    start(i + kStages - 1);
    if (lane_of_warp() == 0) firsts += load16(ring + i % kStages * kVectorsOfCopy).word[0];
    __syncwarp();
  }
  copy_async_wait<0>();
  if (lane_of_warp() == 0) atomicAdd(sum, firsts);
}

/// @param n_stages of the ring of a warp
static __global__ void __launch_bounds__(kWarp* kWarpsOfRing, 1)
    copy_by_bulk(CopyStreams streams, int n_stages, unsigned* sum) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  const CopyRun run = run_of_warp(streams);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = lane_of_warp();
  Arena arena;
  const Shared<Bytes16> ring =
      arena.take<Bytes16>(kWarpsOfRing * n_stages * kVectorsOfCopy) + warp * n_stages * kVectorsOfCopy;
  const Shared<Barrier> full = arena.take<Barrier>(kWarpsOfRing * n_stages) + warp * n_stages;
  const auto start = [&](int i, int stage) {
    if (lane != 0 || i >= run.n_pieces) return;
    barrier_arrive_expect(full + stage, kCopyBytes);
    bulk_copy(ring + stage * kVectorsOfCopy, run.piece(i, kCopyBytes), kCopyBytes, full + stage);
  };
  if (lane == 0) {
    for (int stage = 0; stage < n_stages; ++stage) barrier_init(full + stage, 1);
    barrier_fence_init();
  }
  __syncwarp();
  for (int i = 0; i < n_stages; ++i) start(i, i);
  std::uint32_t firsts = 0;
  for (int i = 0, stage = 0, parity = 0; i < run.n_pieces; ++i) {
    barrier_wait(full + stage, parity);
    if (lane == 0) firsts += load16(ring + stage * kVectorsOfCopy).word[0];
    __syncwarp();
    start(i + n_stages, stage);
    if (++stage == n_stages) stage = 0, parity ^= 1;
  }
  if (lane == 0) atomicAdd(sum, firsts);
#endif
}

/// Threads: a warp of which one thread copies, and a warp that receives. @param n_stages of the ring of the block
static __global__ void __launch_bounds__(2 * kWarp, 1)
    copy_by_tensor_map(const __grid_constant__ TensorMap keys, const __grid_constant__ TensorMap values, CopyStreams streams,
                       int n_stages, unsigned* sum) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  const CopyRun run(streams, kCopyTileBytes, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
  const int first_row = static_cast<int>((run.keys - streams.keys) / kCopyTileBytes) * kCopyTileRows;
  constexpr int kBox = kCopyTileRows * kBoxColumns;
  Arena arena;
  const Shared<BFloat16> ring = arena.take<BFloat16>(std::int64_t{2} * kBox * n_stages, kBoxAlignment);
  const Shared<Barrier> full = arena.take<Barrier>(n_stages), empty = arena.take<Barrier>(n_stages);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < n_stages; ++stage) barrier_init(full + stage, 1), barrier_init(empty + stage, 1);
    barrier_fence_init();
  }
  __syncthreads();

  if (threadIdx.x == 0) {
    for (int i = 0, stage = 0, parity = 1; i < run.n_pieces; ++i) {
      if (i >= n_stages) barrier_wait(empty + stage, parity);
      const int row = first_row + i / 2 * kCopyTileRows;
      barrier_arrive_expect(full + stage, kCopyTileBytes);
      for (int box = 0; box < 2; ++box) {
        const Shared<BFloat16> to = ring + (2 * stage + box) * kBox;
        if (i % 2 == 0)
          bulk_copy_tensor<BFloat16>(to, keys, box * kBoxColumns, row, 0, 0, full + stage);
        else
          bulk_copy_tensor<BFloat16>(to, values, box * kBoxColumns, row, 0, 0, full + stage);
      }
      if (++stage == n_stages) stage = 0, parity ^= 1;
    }
  } else if (threadIdx.x >= kWarp) {
    std::uint32_t firsts = 0;
    for (int i = 0, stage = 0, parity = 0; i < run.n_pieces; ++i) {
      barrier_wait(full + stage, parity);
      if (lane_of_warp() == 0) {
        // Every 16 rows are kCopyBytes. The swizzle leaves the first 16 bytes of these rows where they are.
        for (int row = 0; row < kCopyTileRows; row += 16)
          firsts += load16(ring + (2 * stage * kBox + row * kBoxColumns)).word[0];
      }
      // A lane that still waits for this phase would miss it if the stage was filled again.
      __syncwarp();
      if (lane_of_warp() == 0) barrier_arrive(empty + stage);
      if (++stage == n_stages) stage = 0, parity ^= 1;
    }
    if (lane_of_warp() == 0) atomicAdd(sum, firsts);
  }
#endif
}

/// An array of rows of 256 bytes, of which boxes are copied.
inline TensorArray array_of(const unsigned char* data, std::int64_t n_bytes) {
  return {.data = data,
          .dtype = DType::BF16,
          .extent = {1, 1, n_bytes / 256, 128},
          .stride = {n_bytes / 2, n_bytes / 2, 128},
          .rows = kCopyTileRows};
}

/// Dynamic shared memory of a block with n_copies copies in flight.
inline std::size_t shared_bytes_of(CopyWay way, int n_copies) {
  const auto bytes = [](int n) { return static_cast<std::size_t>(n) * kCopyBytes; };
  switch (way) {
    case CopyWay::CpAsync: return bytes(n_copies + kWarpsOfRing);  // a stage of every ring is the one that is read
    case CopyWay::Bulk: return bytes(n_copies) + 8 * kWarpsOfRing * 8 + 128;
    case CopyWay::TensorMaps: return bytes(n_copies) + 2 * 128;
  }
  return 0;
}

inline int copies_in_flight(int kib) { return kib * 1024 / kCopyBytes; }

/// Tests whether the device has the way to copy, and room for a block with that many KiB in flight.
inline bool has_copies(CopyWay way, int kib_in_flight) {
  if (way > CopyWay::CpAsync && device().major < 9) return false;
  return shared_bytes_of(way, copies_in_flight(kib_in_flight)) <= device().shared_bytes;
}

/// Copies everything once. Adds to *sum the first 32-bit word of every kCopyBytes of keys and of values: what all ways agree
/// on.
/// @throws DeviceError for a shape that is not listed above, or for which the device has no room
inline void launch_copies(const CopyShape& shape, const CopyStreams& streams, unsigned* sum, Stream stream) {
  const int n_copies = copies_in_flight(shape.kib_in_flight);
  Launch config{.grid = {static_cast<unsigned>(shape.n_blocks)},
                .block = {kWarp * kWarpsOfRing},
                .shared_bytes = shared_bytes_of(shape.way, n_copies)};
  switch (shape.way) {
    case CopyWay::CpAsync:
      switch (n_copies / kWarpsOfRing) {
        case 2: return launch(copy_by_cp_async<3>, config, stream, streams, sum);
        case 3: return launch(copy_by_cp_async<4>, config, stream, streams, sum);
        case 4: return launch(copy_by_cp_async<5>, config, stream, streams, sum);
        case 5: return launch(copy_by_cp_async<6>, config, stream, streams, sum);
        case 6: return launch(copy_by_cp_async<7>, config, stream, streams, sum);
      }
      break;
    case CopyWay::Bulk: return launch(copy_by_bulk, config, stream, streams, n_copies / kWarpsOfRing, sum);
    case CopyWay::TensorMaps: {
      config.block = {2 * kWarp};
      TensorMap keys, values;
      encode_tensor_map(array_of(streams.keys, streams.n_bytes), &keys);
      encode_tensor_map(array_of(streams.values, streams.n_bytes), &values);
      return launch(copy_by_tensor_map, config, stream, keys, values, streams, n_copies * kCopyBytes / kCopyTileBytes, sum);
    }
  }
  throw DeviceError(std::string("copies by ") + name_of(shape.way) + ": no kernel has " +
                    std::to_string(shape.kib_in_flight) + " KiB in flight");
}

}  // namespace tree_attn::cuda
