// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A sum as a decoding kernel takes it: a ring of asynchronous copies, lanes, warps, and the last block to arrive.
#include "gpu/platform/device.hpp"
#include "gpu/platform/launch.hpp"
#include "tests/gpu/emulator/seeded_bugs/seeded_bugs.hpp"

#include <cstdint>
#include <vector>

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

constexpr int kThreads = 64, kStages = 3, kTile = 4 * kThreads;
/// More tiles a block than stages and two, or no stage is used twice.
constexpr int kBlocks = 3, kTilesOfBlock = kStages + 3, kElements = kBlocks * kTilesOfBlock * kTile - 37 * 4;

__global__ void pipeline(Bug bug, const float* in, int n, float* partial, unsigned* counter, float* out) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  Arena arena;
  const Shared<float> ring = arena.take<float>(kStages * kTile);
  const Shared<float> scratch = arena.take<float>(kThreads);
  const Shared<int> is_last = arena.take<int>(1);
  const int first = static_cast<int>(blockIdx.x) * kTilesOfBlock, end = first + kTilesOfBlock;

  const auto start = [&](int tile) {
    const int at = tile * kTile + 4 * thread;
    const int n_bytes = tile < end && at < n ? 16 : 0;
    if (tile < end) copy_async16(ring + (tile % kStages * kTile + 4 * thread), n_bytes > 0 ? in + at : in, n_bytes);
    copy_async_commit();
  };

  // Keep kStages - 1 tiles on their way; every thread sums numbers that others have copied.
  for (int tile = first; tile < first + kStages - 1; ++tile) start(tile);
  float sum = 0;
  for (int tile = first; tile < end; ++tile) {
    if (bug == Bug::kWeakWait) {
      copy_async_wait<kStages - 1>();
    } else {
      copy_async_wait<kStages - 2>();
    }
    if (bug == Bug::kStageTooEarly) start(tile + kStages - 1);
    if (bug != Bug::kMissingBarrier) __syncthreads();
    if (bug != Bug::kStageTooEarly) start(tile + kStages - 1);
    for (int i = thread; i < kTile; i += kThreads) sum += ring[tile % kStages * kTile + i];
  }
  copy_async_wait<0>();
  if (bug == Bug::kLoadPastEnd && blockIdx.x == kBlocks - 1 && thread == 0) {
    if (in[n] == 12345.0f) sum += 1;
  }

  // Neighbours by shared memory, the warp by shuffles, warps in global memory.
  scratch[thread] = sum;
  if (bug != Bug::kMissingSyncwarp) __syncwarp();
  sum += scratch[thread ^ 1];
  for (int distance = 2; distance < 32; distance *= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, distance);
  if (bug == Bug::kAbsentLane && lane < 16) sum = __shfl_sync(0x0000FFFF, sum, 20);
  if (lane == 0) store_fresh(partial + blockIdx.x * 2 + threadIdx.x / 32, sum);

  // The last block adds up.
  if (bug != Bug::kCountBeforeBarrier) __syncthreads();
  if (thread == 0) {
    unsigned before = 0;
    bool wraps = false;
    if (bug == Bug::kPlainCounter) {
      before = *counter;
      *counter = before + 1;
    } else if (bug == Bug::kRelaxedCounter) {
      before = atomicAdd(counter, 1u);
    } else {
      before = atomic_inc_acq_rel(counter, gridDim.x - 1);
      wraps = true;
    }
    const bool last = before == gridDim.x - 1;
    if (last && !wraps) *counter = 0;
    *is_last = last ? 1 : 0;
  }
  __syncthreads();
  if (*is_last == 1 && thread == 0) {
    float total = 0;
    for (unsigned i = 0; i < 2 * gridDim.x; ++i) total += load_fresh(partial + i);
    *out = total;
  }
}

}  // namespace

bool pipeline_is_right(Bug bug) {
  std::vector<float> elements(kElements);
  float expected = 0;
  for (int i = 0; i < kElements; ++i) expected += elements[static_cast<std::size_t>(i)] = static_cast<float>(i % 7 - 2);
  DeviceBuffer<float> in(kElements, MemoryUse::Input), partial(2 * kBlocks, MemoryUse::Scratch), out(1);
  DeviceBuffer<unsigned> counter(1);
  in.upload(elements);
  counter.fill(0);
  // Twice: what the first launch leaves must not make a wrong one right, and it must leave the counter as it found it.
  for (int i = 0; i < 2; ++i) {
    out.fill(0);
    launch(pipeline, {.grid = {kBlocks}, .block = {kThreads}, .shared_bytes = (kStages * kTile + kThreads) * 4 + 128},
           Stream{}, bug, in.data(), kElements, partial.data(), counter.data(), out.data());
  }
  return out.download()[0] == expected;
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
