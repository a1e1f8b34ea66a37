// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The device functions of gpu/engine/forest.cuh and gpu/engine/scalar.cuh, each in a kernel that does nothing
/// else.
#include "tree_attn/tests/gpu/engine/state_kernels.hpp"

#include "tree_attn/gpu/engine/join.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

using SubWarp8 = SubWarp<float, 8, 1>;
using State = LaneState<SubWarp8::kElements>;
static_assert(SubWarp8::kLanes * SubWarp8::kElements == kStateDim);

__device__ void load_state(const float* from, int lane, State& state) {
  state.shift = from[kShift], state.sum = from[kSum];
  for (int c = 0; c < SubWarp8::kElements; ++c) state.n[c] = from[kValues + SubWarp8::component(lane, c)];
}

__device__ void store_state(float* to, int lane, const State& state) {
  if (lane == 0) to[kShift] = state.shift, to[kSum] = state.sum;
  for (int c = 0; c < SubWarp8::kElements; ++c) to[kValues + SubWarp8::component(lane, c)] = state.n[c];
}

__global__ void merge_kernel(const float* left, const float* right, float* out) {
  const std::int64_t at = blockIdx.x * state_size(kStateDim);
  const int lane = static_cast<int>(threadIdx.x);
  State a, b;
  load_state(left + at, lane, a);
  load_state(right + at, lane, b);
  merge(a, b);
  store_state(out + at, lane, a);
}

/// The value of key i, vector by vector.
struct Values {
  const float* first;
  int lane;
  __device__ Bytes16 operator()(int i, int) const {
    return load16_global(first + i * kStateDim + SubWarp8::component(lane, 0));
  }
};

/// One leaf per block, in steps of eight keys.
__global__ void leaf_kernel(const float* scores, const float* values, float* out) {
  const int lane = static_cast<int>(threadIdx.x) % SubWarp8::kLanes;
  State leaf;
  set_empty(leaf);
  for (int step = 0; step < kStepsPerLeaf; ++step) {
    const std::int64_t first = blockIdx.x * kLeafKeys + step * kKeysPerStep;
    add_eight_keys<SubWarp8>(scores[first + key_of_lane(lane)], lane, Values{values + first * kStateDim, lane}, leaf);
  }
  if (threadIdx.x < SubWarp8::kLanes) store_state(out + blockIdx.x * state_size(kStateDim), lane, leaf);
}

/// A copy of host elements on the device.
template <class T>
DeviceBuffer<T> on_device(const std::vector<T>& here) {
  DeviceBuffer<T> buffer(static_cast<std::int64_t>(here.size()));
  buffer.upload(here);
  return buffer;
}

Launch sub_warps(std::int64_t n) { return {.grid = {static_cast<unsigned>(n)}, .block = {SubWarp8::kLanes}}; }

}  // namespace

std::vector<float> merge_on_device(const std::vector<float>& left, const std::vector<float>& right) {
  const DeviceBuffer<float> a = on_device(left), b = on_device(right), out(a.size());
  launch(merge_kernel, sub_warps(a.size() / state_size(kStateDim)), Stream{}, a.data(), b.data(), out.data());
  return out.download();
}

std::vector<float> leaves_on_device(const std::vector<float>& scores, const std::vector<float>& values) {
  const std::int64_t n = static_cast<std::int64_t>(scores.size()) / kLeafKeys;
  const DeviceBuffer<float> s = on_device(scores), v = on_device(values), out(n * state_size(kStateDim));
  // One warp each, because its lanes shuffle; the first sub-warp writes.
  launch(leaf_kernel, {.grid = {static_cast<unsigned>(n)}, .block = {kWarp}}, Stream{}, s.data(), v.data(), out.data());
  return out.download();
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
