// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A sum as a decoding kernel takes it: a ring of asynchronous copies, lanes, warps, and the last block to arrive.
#include "tree_attn/gpu/platform/device.hpp"
#include "tree_attn/gpu/platform/launch.hpp"
#include "tree_attn/tests/gpu/platform/seeded_bugs/kernels.hpp"

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
    const int skip = bug == Bug::kCopyPastEnd ? 4 : 0, shift = bug == Bug::kMisalignedCopy ? 1 : 0;
    if (tile < end)
      copy_async16(ring + (tile % kStages * kTile + 4 * thread + shift), n_bytes > 0 ? in + at + skip : in, n_bytes);
    copy_async_commit();
  };

  // Keep kStages - 1 tiles on their way; every thread sums numbers that others have copied.
  for (int tile = first; tile < first + kStages - 1; ++tile) start(tile);
  float sum = 0;
  for (int tile = first; tile < end; ++tile) {
    if (bug == Bug::kWeakWait) {
      copy_async_wait<kStages - 1>();
    } else if (bug != Bug::kMissingWait) {
      copy_async_wait<kStages - 2>();
    }
    if (bug == Bug::kStageTooEarly) start(tile + kStages - 1);
    if (bug != Bug::kMissingBarrier) __syncthreads();
    if (bug != Bug::kStageTooEarly) start(tile + kStages - 1);
    for (int i = thread; i < kTile; i += kThreads) sum += ring[tile % kStages * kTile + i];
    if (bug == Bug::kEarlyReturn && thread == kThreads - 1 && tile == end - 2) return;
  }
  copy_async_wait<0>();
  if (bug == Bug::kLoadPastEnd && blockIdx.x == kBlocks - 1 && thread == 0) {
    if (in[n] == 12345.0f) sum += 1;
  }

  // Neighbours by shared memory, the warp by shuffles, warps in global memory.
  scratch[thread] = sum;
  if (bug == Bug::kSharedPastEnd && thread == 0) scratch[kThreads] = 0.0f;
  if (bug != Bug::kMissingSyncwarp) __syncwarp();
  sum += scratch[thread ^ 1];
  for (int distance = 2; distance < 32; distance *= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, distance);
  if (bug == Bug::kAbsentLane && lane < 16) sum = __shfl_sync(0x0000FFFF, sum, 20);
  const bool leaves = bug != Bug::kEntryNotWritten || blockIdx.x != 1 || thread < 32;
  if (lane == 0 && leaves) store_fresh(partial + blockIdx.x * 2 + threadIdx.x / 32, sum);

  // The last block adds up.
  if (bug == Bug::kDivergentBarrier) {
    if (thread < 32) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  } else if (bug != Bug::kCountBeforeBarrier) {
    __syncthreads();
  }
  if (thread == 0) {
    unsigned before = 0;
    bool wraps = false;
    if (bug == Bug::kPlainCounter) {
      before = *counter;
      *counter = before + 1;
    } else if (bug == Bug::kRelaxedCounter) {
      before = atomicAdd(counter, 1u);
    } else {
      before = atomic_inc_acq_rel(counter, bug == Bug::kCounterTooLong ? gridDim.x : gridDim.x - 1);
      wraps = true;
    }
    const bool last = before == gridDim.x - 1;
    if (last && !wraps) *counter = 0;
    if (last || bug != Bug::kUnsetFlag) *is_last = last ? 1 : 0;
  }
  __syncthreads();
  if (*is_last == 1 && thread == 0) {
    float total = 0;
    for (unsigned i = 0; i < 2 * gridDim.x; ++i)
      total += bug == Bug::kReadOnlyLoad ? load_once(partial + i) : load_fresh(partial + i);
    if (bug == Bug::kEntryTooMany && load_fresh(partial + 2 * gridDim.x) > 1e6f) total = 0;
    *out = total;
  }
}

}  // namespace

bool pipeline_is_right(Bug bug) {
  std::vector<float> elements(kElements);
  float expected = 0;
  for (int i = 0; i < kElements; ++i) expected += elements[static_cast<std::size_t>(i)] = static_cast<float>(i % 7 - 2);
  DeviceBuffer<float> in(kElements, MemoryUse::Input), partial(2 * kBlocks + 1, MemoryUse::Scratch), out(1);
  DeviceBuffer<unsigned> counter(1);
  in.upload(elements);
  counter.fill(0);
  // Once without it: what a right launch leaves behind must not make a wrong one right.
  // And once more after it: it must leave the counter as it found it.
  for (const Bug now : {Bug::kNone, bug, bug}) {
    out.fill(0);
    launch(pipeline, {.grid = {kBlocks}, .block = {kThreads}, .shared_bytes = (kStages * kTile + kThreads) * 4 + 128},
           Stream{}, now, in.data(), kElements, partial.data(), counter.data(), out.data());
  }
  return out.download()[0] == expected;
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
