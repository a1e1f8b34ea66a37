// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Sums over the sequences of a batch by all lanes of a warp (section 5.3).
///
/// One thread that reads the lengths of a batch one after the other waits for memory as often as the batch has entries,
/// before its first copy. The lanes of a warp read 32 at once.
#pragma once

#include "gpu/parts/work_partition.hpp"
#include "gpu/parts/worker.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// What SerialScan does, by a warp: all lanes call it with the same arguments and get the same result.
struct WarpScan {
  template <class Of>
  __device__ __forceinline__ static Count sum(Count n, const Of& of) {
    if (n == 1) return of(0);
    Count sum = 0;
    TREE_ATTN_LOOP
    for (Count i = threadIdx.x % kWarp; i < n; i += kWarp) sum += of(i);
    TREE_ATTN_UNROLL
    for (int flip = 1; flip < kWarp; flip *= 2) sum += __shfl_xor_sync(kAllLanes, sum, flip);
    return warp_uniform(sum);
  }
  template <class Of>
  __device__ __forceinline__ static FoundEntry find(Count n, Count work_item, const Of& of, FoundEntry found = {}) {
    if (n == 1) return {};
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    TREE_ATTN_LOOP
    for (;; found.entry += kWarp) {
      const Count i = found.entry + static_cast<Count>(lane), own = i < n ? of(i) : 0;
      // Those of the entries up to this lane's.
      Count through = own;
      TREE_ATTN_UNROLL
      for (int distance = 1; distance < kWarp; distance *= 2) {
        const Count left = __shfl_sync(kAllLanes, through, lane - distance);
        if (lane >= distance) through += left;
      }
      const int n_passed = __popc(__ballot_sync(kAllLanes, work_item >= found.first + through));
      if (n_passed < kWarp)
        return {warp_uniform(found.entry + static_cast<Count>(n_passed)),
                warp_uniform(found.first + __shfl_sync(kAllLanes, through - own, n_passed))};
      found.first += __shfl_sync(kAllLanes, through, kWarp - 1);
    }
  }
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
