// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A sum by clusters: a producer's bulk copies into a ring, consumers, and the blocks' sums in distributed shared
/// memory.
#include "tree_attn/gpu/platform/device.hpp"
#include "tree_attn/gpu/platform/launch.hpp"
#include "tree_attn/tests/gpu/platform/seeded_bugs/seeded_bugs.hpp"

#include <cstdint>
#include <vector>

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

constexpr int kConsumers = 64, kThreads = kConsumers + 32, kStages = 2, kTile = 2 * kConsumers, kBytes = 4 * kTile;
constexpr int kClusters = 2, kClusterSize = 2, kTilesOfBlock = kStages + 3;
constexpr int kElements = kClusters * kClusterSize * kTilesOfBlock * kTile;

__global__ void cluster(Bug bug, const float* in, float* out) {
  const int thread = static_cast<int>(threadIdx.x);
  Arena arena;
  const Shared<float> ring = arena.take<float>(kStages * kTile);
  const Shared<float> sums = arena.take<float>(kConsumers);
  const Shared<float> block_sum = arena.take<float>(1);
  const Shared<Barrier> full = arena.take<Barrier>(kStages), empty = arena.take<Barrier>(kStages);

  if (thread == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(full + stage, 1);
      barrier_init(empty + stage, bug == Bug::kCountTooSmall ? kConsumers - 1 : kConsumers);
    }
    barrier_fence_init();
  }
  if (bug != Bug::kNoBarrierAfterInit) __syncthreads();

  const int first = static_cast<int>(blockIdx.x) * kTilesOfBlock;
  float sum = 0;
  if (thread == kConsumers) {
    for (int t = 0; t < kTilesOfBlock; ++t) {
      const int stage = t % kStages;
      if (t >= kStages && bug != Bug::kNoWaitForEmpty) barrier_wait(empty + stage, (t / kStages - 1) & 1);
      barrier_arrive_expect(full + stage, kBytes);
      bulk_copy(ring + stage * kTile, in + (first + t) * kTile, kBytes, full + stage);
    }
  } else if (thread < kConsumers) {
    for (int t = 0; t < kTilesOfBlock; ++t) {
      const int stage = t % kStages;
      if (bug != Bug::kNoWait) barrier_wait(full + stage, (t / kStages + (bug == Bug::kWrongParity ? 1 : 0)) & 1);
      for (int i = thread; i < kTile; i += kConsumers) sum += ring[stage * kTile + i];
      barrier_arrive(empty + stage);
    }
    sums[thread] = sum;
  }
  __syncthreads();
  if (thread == 0) {
    float total = 0;
    for (int i = 0; i < kConsumers; ++i) total += sums[i];
    block_sum[0] = total;
  }

  // The first block of the cluster adds up the others'.
  if (bug != Bug::kNoClusterBarrierBeforeRead) cluster_sync();
  if (cluster_rank() == 0 && thread == 0) {
    float total = 0;
    for (int rank = 0; rank < kClusterSize; ++rank) total += remote(block_sum, rank)[0];
    out[blockIdx.x / kClusterSize] = total;
  }
  if (bug != Bug::kNoClusterBarrierBeforeExit) cluster_sync();
}

}  // namespace

bool cluster_is_right(Bug bug) {
  std::vector<float> elements(kElements), expected(kClusters, 0.0f);
  for (int i = 0; i < kElements; ++i) {
    const float x = static_cast<float>(i % 5 - 1);
    expected[static_cast<std::size_t>(i / (kElements / kClusters))] += elements[static_cast<std::size_t>(i)] = x;
  }
  DeviceBuffer<float> in(kElements, MemoryUse::Input), out(kClusters);
  in.upload(elements);
  const std::size_t shared_bytes = (kStages * kTile + kConsumers) * sizeof(float) + 3 * 128;
  launch(cluster,
         {.grid = {kClusters * kClusterSize}, .block = {kThreads}, .shared_bytes = shared_bytes, .cluster = kClusterSize},
         Stream{}, bug, in.data(), out.data());
  return out.download() == expected;
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
