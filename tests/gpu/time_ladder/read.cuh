// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A kernel that only reads: no decode step of batch 1 can take less time than it does on the same number of bytes.
#pragma once

#include "tree_attn/gpu/platform/device.hpp"
#include "tree_attn/tests/gpu/time_ladder/clocks.cuh"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace tree_attn::cuda {

/// Reads 16 bytes a thread, eight reads in flight, and does nothing with them that could be left out.
static __global__ void __launch_bounds__(1024) read_all(const Bytes16* from, std::int64_t n, std::uint32_t* sink) {
  constexpr int kInFlight = 8;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  std::uint32_t all = 0;
  for (; at + (kInFlight - 1) * step < n; at += kInFlight * step) {
    Bytes16 bytes[kInFlight];
    TREE_ATTN_UNROLL
    for (int i = 0; i < kInFlight; ++i) bytes[i] = load16_global(from + at + i * step);
    TREE_ATTN_UNROLL
    for (int i = 0; i < kInFlight; ++i) all ^= bytes[i].word[0] ^ bytes[i].word[1] ^ bytes[i].word[2] ^ bytes[i].word[3];
  }
  for (; at < n; at += step) all ^= load16_global(from + at).word[0];
  if (all == 0xDEADBEEF) *sink = all;
}

/// Seconds that a launch in a graph takes to read n_bytes: the best of some shapes of the grid.
/// @param from i -> the first byte of input i; n_sets inputs take turns
template <class From>
double time_of_read(std::int64_t n_bytes, int n_sets, const From& from, Stream stream) {
  DeviceBuffer<std::uint32_t> sink(1);
  double best = std::numeric_limits<double>::infinity();
  for (const unsigned n_threads : {256u, 512u, 1024u}) {
    for (const unsigned n_blocks : {1u, 2u, 4u}) {
      if (n_threads * n_blocks > 2048) continue;
      const Launch config{.grid = {n_blocks * static_cast<unsigned>(device().n_multiprocessors)}, .block = {n_threads}};
      const auto run = [&](int i) {
        launch(read_all, config, stream, reinterpret_cast<const Bytes16*>(from(i)), n_bytes / 16, sink.data());
      };
      best = std::min(best, time_of(stream, n_sets, run).graph);
    }
  }
  return best;
}

/// Bytes of the L2 cache of the current device.
inline std::int64_t l2_bytes() {
  int id = 0, n_bytes = 0;
  check(cudaGetDevice(&id), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&n_bytes, cudaDevAttrL2CacheSize, id), "cudaDeviceGetAttribute");
  return n_bytes;
}

/// Inputs that take turns so that the L2 cache holds none of them when its turn comes: four times the cache in all.
inline int n_sets_past_l2(std::int64_t n_bytes) {
  return static_cast<int>(std::max<std::int64_t>(1, (4 * l2_bytes() + n_bytes - 1) / n_bytes));
}
/// Whether the L2 cache is to hold an input that takes no turns. Whether it does shows in the time of a read.
inline bool fits_in_l2(std::int64_t n_bytes) { return n_bytes <= l2_bytes() / 4 * 3; }

}  // namespace tree_attn::cuda
