// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The kernels of copy_kernels.hpp.
#include "tree_attn/tests/gpu/time_ladder/copy_kernels.hpp"

#include "tree_attn/gpu/engine/forest.cuh"

#include <string>

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

constexpr int kWarpsOfRing = 8;  ///< warps of a block that have a ring each
constexpr int kVectors = kCopyBytes / 16, kVectorsPerLane = kVectors / kWarp;

/// The part of the streams that a thread group copies: units of keys and of values in turns.
struct CopyRun {
  const unsigned char *keys, *values;
  int n_units;  ///< of both

  __device__ CopyRun(const CopyStreams& streams, int unit_bytes, int thread_group, int n_thread_groups) {
    const std::int64_t n = streams.n_bytes / unit_bytes, begin = n * thread_group / n_thread_groups,
                       end = n * (thread_group + 1) / n_thread_groups;
    keys = streams.keys + begin * unit_bytes, values = streams.values + begin * unit_bytes;
    n_units = static_cast<int>(2 * (end - begin));
  }
  __device__ const unsigned char* unit(int i, int unit_bytes) const {
    return (i % 2 == 0 ? keys : values) + static_cast<std::int64_t>(i / 2) * unit_bytes;
  }
};

__device__ int lane_of_warp() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ CopyRun run_of_warp(const CopyStreams& streams) {
  const int warps = static_cast<int>(blockDim.x) / kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  return {streams, kCopyBytes, static_cast<int>(blockIdx.x) * warps + warp, static_cast<int>(gridDim.x) * warps};
}

__global__ void __launch_bounds__(1024, 1) copy_by_loads(CopyStreams streams, unsigned* sum) {
  const CopyRun run = run_of_warp(streams);
  std::uint32_t firsts = 0, all = 0;
#pragma unroll 1  // Two rounds at once would have twice as many loads in flight.
  for (int i = 0; i < run.n_units; ++i) {
    const unsigned char* const from = run.unit(i, kCopyBytes) + 16 * lane_of_warp();
    Bytes16 bytes[kVectorsPerLane];
    TREE_ATTN_UNROLL
    for (int c = 0; c < kVectorsPerLane; ++c) bytes[c] = load16_global(from + 16 * kWarp * c);
    TREE_ATTN_UNROLL
    for (int c = 0; c < kVectorsPerLane; ++c)
      all ^= bytes[c].word[0] ^ bytes[c].word[1] ^ bytes[c].word[2] ^ bytes[c].word[3];
    firsts += bytes[0].word[0];
  }
  // Without a use of all words no load need be made.
  if (lane_of_warp() == 0) atomicAdd(sum, all == 0xDEADBEEF ? firsts + 1 : firsts);
}

/// @tparam kStages of the ring, of which all but one are in flight
template <int kStages>
__global__ void __launch_bounds__(kWarp* kWarpsOfRing, 1) copy_by_cp_async(CopyStreams streams, unsigned* sum) {
  const CopyRun run = run_of_warp(streams);
  Arena arena;
  const Shared<Bytes16> ring =
      arena.take<Bytes16>(kWarpsOfRing * kStages * kVectors) + static_cast<int>(threadIdx.x) / kWarp * kStages * kVectors;
  const auto start = [&](int i) {
    if (i < run.n_units) {
      TREE_ATTN_UNROLL
      for (int c = 0; c < kVectorsPerLane; ++c) {
        const int vector = kWarp * c + lane_of_warp();
        copy_async16(ring + (i % kStages * kVectors + vector), run.unit(i, kCopyBytes) + 16 * vector, 16);
      }
    }
    copy_async_commit();
  };
  for (int i = 0; i < kStages - 1; ++i) start(i);
  std::uint32_t firsts = 0;
  for (int i = 0; i < run.n_units; ++i) {
    copy_async_wait<kStages - 2>();
    __syncwarp();
    start(i + kStages - 1);
    if (lane_of_warp() == 0) firsts += load16(ring + i % kStages * kVectors).word[0];
    __syncwarp();
  }
  copy_async_wait<0>();
  if (lane_of_warp() == 0) atomicAdd(sum, firsts);
}

/// @param n_stages of the ring of a warp
__global__ void __launch_bounds__(kWarp* kWarpsOfRing, 1) copy_by_bulk(CopyStreams streams, int n_stages, unsigned* sum) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  const CopyRun run = run_of_warp(streams);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = lane_of_warp();
  Arena arena;
  const Shared<Bytes16> ring = arena.take<Bytes16>(kWarpsOfRing * n_stages * kVectors) + warp * n_stages * kVectors;
  const Shared<Barrier> full = arena.take<Barrier>(kWarpsOfRing * n_stages) + warp * n_stages;
  const auto start = [&](int i, int stage) {
    if (lane != 0 || i >= run.n_units) return;
    barrier_arrive_expect(full + stage, kCopyBytes);
    bulk_copy(ring + stage * kVectors, run.unit(i, kCopyBytes), kCopyBytes, full + stage);
  };
  if (lane == 0) {
    for (int stage = 0; stage < n_stages; ++stage) barrier_init(full + stage, 1);
    barrier_fence_init();
  }
  __syncwarp();
  for (int i = 0; i < n_stages; ++i) start(i, i);
  std::uint32_t firsts = 0;
  for (int i = 0, stage = 0, parity = 0; i < run.n_units; ++i) {
    barrier_wait(full + stage, parity);
    if (lane == 0) firsts += load16(ring + stage * kVectors).word[0];
    __syncwarp();
    start(i + n_stages, stage);
    if (++stage == n_stages) stage = 0, parity ^= 1;
  }
  if (lane == 0) atomicAdd(sum, firsts);
#endif
}

/// Threads: a warp of which one thread copies, and a warp that receives. @param n_stages of the ring of the block
__global__ void __launch_bounds__(2 * kWarp, 1)
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
    for (int i = 0, stage = 0, parity = 1; i < run.n_units; ++i) {
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
    for (int i = 0, stage = 0, parity = 0; i < run.n_units; ++i) {
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

TensorMap map_of(const unsigned char* data, std::int64_t n_bytes) {
  return make_tensor_map({.data = data,
                          .dtype = DType::BF16,
                          .extent = {1, 1, n_bytes / 256, 128},
                          .stride = {n_bytes / 2, n_bytes / 2, 128},
                          .rows = kCopyTileRows});
}

/// Dynamic shared memory of a block with n_copies copies in flight. @pre for loads it needs none
std::size_t shared_bytes_of(CopyWay way, int n_copies) {
  const auto bytes = [](int n) { return static_cast<std::size_t>(n) * kCopyBytes; };
  switch (way) {
    case CopyWay::Loads: return 0;
    case CopyWay::CpAsync: return bytes(n_copies + kWarpsOfRing);  // a stage of every ring is the one that is read
    case CopyWay::Bulk: return bytes(n_copies) + 8 * kWarpsOfRing * 8 + 128;
    case CopyWay::TensorMaps: return bytes(n_copies) + 2 * 128;
  }
  return 0;
}

int copies_in_flight(int kib) { return kib * 1024 / kCopyBytes; }

}  // namespace

bool has_copies(CopyWay way, int kib_in_flight) {
  if (way == CopyWay::Loads) return kib_in_flight <= 128;
  if (way > CopyWay::CpAsync && device().major < 9) return false;
  return shared_bytes_of(way, copies_in_flight(kib_in_flight)) <= device().shared_bytes;
}

void launch_copies(const CopyShape& shape, const CopyStreams& streams, unsigned* sum, Stream stream) {
  const int n_copies = copies_in_flight(shape.kib_in_flight);
  Launch config{.grid = {static_cast<unsigned>(shape.n_blocks)},
                .block = {kWarp * kWarpsOfRing},
                .shared_bytes = shared_bytes_of(shape.way, n_copies)};
  switch (shape.way) {
    case CopyWay::Loads:
      if (n_copies > 32) break;
      config.block = {static_cast<unsigned>(kWarp * n_copies)};
      return launch(copy_by_loads, config, stream, streams, sum);
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
    case CopyWay::TensorMaps:
      config.block = {2 * kWarp};
      return launch(copy_by_tensor_map, config, stream, map_of(streams.keys, streams.n_bytes),
                    map_of(streams.values, streams.n_bytes), streams, n_copies * kCopyBytes / kCopyTileBytes, sum);
  }
  throw DeviceError(std::string("copies by ") + name_of(shape.way) + ": no kernel has " +
                    std::to_string(shape.kib_in_flight) + " KiB in flight");
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
