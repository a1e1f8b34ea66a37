// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief merge() of two states in global memory, by a thread block (Alg. 3).
#pragma once

#include "gpu/platform/device.hpp"
#include "reference/state/state.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// left <- merge(left, right). All threads of the block call it; they share the components, and the shifts are read before
/// any is written.
__device__ inline void merge_rows(float* left, const float* right, std::int64_t d_v) {
  const Rescale<float> r = rescale(load_fresh(left + kShift), load_fresh(right + kShift));
  __syncthreads();
  if (threadIdx.x == 0) store_fresh(left + kShift, r.shift);
  for (std::int64_t c = kSum + threadIdx.x; c < state_size(d_v); c += blockDim.x)
    store_fresh(left + c, merge_element(r, load_fresh(left + c), load_fresh(right + c)));
  __syncthreads();
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
