// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Who comes last: one merge at the end of the same launch, without a barrier over the grid (Alg. 3).
#pragma once

#include "gpu/platform/device.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Says that this block has written its part. All threads of the block call it.
///
/// The barrier orders the block's writes before thread 0, whose count releases them; the last count acquires those of all
/// blocks, and the barrier after it hands them to the whole block. The counter wraps to zero, ready for the next launch, so
/// that a CUDA graph may replay it.
/// @param counter blocks that have arrived
/// @param n blocks that will
/// @param[out] is_last one flag in shared memory
/// @returns whether this block is the last one
/// @paper{alg_3, Alg. 3}
__device__ __forceinline__ bool arrives_last(unsigned* counter, unsigned n, Shared<int> is_last) {
  __syncthreads();
  if (threadIdx.x == 0) {
    *is_last = atomic_inc_acq_rel(counter, n - 1) == n - 1 ? 1 : 0;
  }
  __syncthreads();
  return *is_last != 0;
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
