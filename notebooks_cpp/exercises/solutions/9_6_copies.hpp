// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 9.6: copies under way while a warp adds: cp.async.
///
/// Hint: Commit a group for every tile, also where there is none, so that the groups under way are always as many. Wait
/// until one may be under way, then __syncwarp(): copies of other lanes have arrived after it, and the stage may be
/// filled again.
#pragma once

#include "notebooks_cpp/exercises/puzzle.hpp"

/// out[i] = the sum over all tiles of element 127 - i, i < 128. x is [n_tiles][128], and the launch gives shared memory for
/// three tiles. Words: Arena, copy_async16(to, from, 16), copy_async_commit(), copy_async_wait<groups that may be under
/// way>(), __syncwarp().
inline __global__ void add_tiles(const float* x, int n_tiles, float* out) {
  Arena arena;
  const Shared<float> ring = arena.take<float>(3 * 128);
  const int lane = static_cast<int>(threadIdx.x);
  // A group per tile, also where there is none, so that the number of groups under way is always the same.
  const auto start = [&](int tile) {
    if (tile < n_tiles) copy_async16(ring + (tile % 3 * 128 + 4 * lane), x + tile * 128 + 4 * lane, 16);
    copy_async_commit();
  };
  start(0), start(1);
  float sums[4] = {};
  for (int tile = 0; tile < n_tiles; ++tile) {
    copy_async_wait<1>();
    // A lane has waited for its own copies; those of the others have arrived after this. All have also read the last tile.
    __syncwarp();
    start(tile + 2);
    for (int i = 0; i < 4; ++i) sums[i] += ring[tile % 3 * 128 + 127 - 32 * i - lane];
  }
  for (int i = 0; i < 4; ++i) store_fresh(out + 32 * i + lane, sums[i]);
}
