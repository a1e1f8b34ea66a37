// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Sums of columns: lane 0 of each warp fetches boxes of an array into a ring of that warp; and a second launch,
/// which overlaps the first, adds up what the warps found.
#include "tree_attn/gpu/platform/device.hpp"
#include "tree_attn/gpu/platform/launch.hpp"
#include "tree_attn/tests/gpu/platform/seeded_bugs/kernels.hpp"

#include <cstdint>
#include <vector>

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

constexpr int kWarps = 2, kStages = 2, kRows = 16, kBoxesOfWarp = kStages + 3;
constexpr int kBox = kRows * kBoxColumns, kBytes = kRows * kBoxRowBytes;
/// The last box reaches past the array, and the array past the sequence: what lies there must not be summed.
constexpr int kCapacity = kWarps * kBoxesOfWarp * kRows - 3, kLength = kCapacity - 4;

/// @param[out] sums [kWarps][kBoxColumns]
__global__ void warp_ring(Bug bug, const __grid_constant__ TensorMap map, float* sums) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  Arena arena;
  const int shift = bug == Bug::kBoxMisaligned ? kBoxColumns : 0;
  const Shared<BFloat16> ring =
      arena.take<BFloat16>(kWarps * kStages * kBox + kBoxColumns, kBoxAlignment) + (warp * kStages * kBox + shift);
  const Shared<Barrier> full = arena.take<Barrier>(kWarps * kStages) + warp * kStages;

  const auto start = [&](int box) {
    const int row = (warp * kBoxesOfWarp + box) * kRows, in_array = kCapacity - row < kRows ? kCapacity - row : kRows;
    barrier_arrive_expect(full + box % kStages, bug == Bug::kBoxTooFewBytes ? in_array * kBoxRowBytes : kBytes);
    const Shared<BFloat16> to = ring + box % kStages * kBox;
    if (bug == Bug::kBoxOfAnotherType) {
      bulk_copy_tensor<Half>(to, map, 0, row, 0, 0, full + box % kStages);
    } else {
      bulk_copy_tensor<BFloat16>(to, map, 0, row, 0, 0, full + box % kStages, CacheHint::EvictFirst);
    }
  };

  if (lane == 0) {
    for (int stage = 0; stage < kStages; ++stage) barrier_init(full + stage, 1);
    barrier_fence_init();
  }
  // The memory of the ring is scratch first, as between two work ranges of a kernel.
  for (int i = lane; i < kStages * kBox; i += 32) ring[i] = BFloat16{};
  if (bug != Bug::kNoProxyFence) async_proxy_fence();
  if (bug != Bug::kNoSyncwarpAfterInit) __syncwarp();
  if (lane == 0) {
    for (int stage = 0; stage < kStages; ++stage) start(stage);
  }
  float sum[2] = {};
  for (int box = 0; box < kBoxesOfWarp; ++box) {
    barrier_wait(full + box % kStages, box / kStages & 1);
    for (int r = 0; r < kRows; ++r) {
      if ((warp * kBoxesOfWarp + box) * kRows + r >= kLength && bug != Bug::kRowsPastLength) break;
      const int unit = bug == Bug::kNotSwizzled ? lane / 4 : swizzled_unit(r, lane / 4);
      for (int c = 0; c < 2; ++c) {
        const BFloat16 x = ring[box % kStages * kBox + r * kBoxColumns + unit * 8 + lane % 4 * 2 + c];
        sum[c] += widen(x);
      }
    }
    if (bug != Bug::kNoSyncwarpBeforeRefill) __syncwarp();
    if (lane == 0 && box + kStages < kBoxesOfWarp) start(box + kStages);
  }
  for (int c = 0; c < 2; ++c) store_fresh(sums + warp * kBoxColumns + 2 * lane + c, sum[c]);
  launch_dependents();
}

/// One thread per column. @param workspace [kBoxColumns], which the launch before this one uses too
__global__ void add_warps(Bug bug, const float* sums, float* workspace, float* out) {
  const int c = static_cast<int>(threadIdx.x);
  if (bug == Bug::kWriteBeforeWait) store_fresh(workspace + c, 0.0f);
  if (bug != Bug::kNoWaitForLaunch) wait_for_previous_launch();
  float sum = 0;
  for (int warp = 0; warp < kWarps; ++warp) sum += load_fresh(sums + warp * kBoxColumns + c);
  store_fresh(workspace + c, sum);
  out[c] = load_fresh(workspace + c);
}

}  // namespace

bool warp_ring_is_right(Bug bug) {
  std::vector<BFloat16> elements(static_cast<std::size_t>(kLength) * kBoxColumns);
  std::vector<float> expected(kBoxColumns, 0.0f);
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const float x = static_cast<float>(static_cast<int>(i / kBoxColumns * 5 + i % kBoxColumns * 3) % 11 - 4);
    elements[i] = narrow<BFloat16>(x);
    expected[i % kBoxColumns] += x;
  }
  DeviceBuffer<BFloat16> in(kCapacity * kBoxColumns, MemoryUse::Input);
  DeviceBuffer<float> sums(kWarps * kBoxColumns), out(kBoxColumns);
  in.upload(elements);
  const std::int64_t positions = bug == Bug::kMapPastEnd ? kCapacity + 1 : kCapacity;
  const TensorMap map =
      make_tensor_map({in.data(), DType::BF16, {1, 1, positions, kBoxColumns}, {0, 0, kBoxColumns}, kRows});
  constexpr std::size_t kShared = (kWarps * kStages * kBox + kBoxColumns) * sizeof(BFloat16) + 128;
  launch(warp_ring, {.block = {kWarps * 32}, .shared_bytes = kShared}, Stream{}, bug, map, sums.data());
  launch(add_warps, {.block = {kBoxColumns}, .overlaps = true}, Stream{}, bug, sums.data(), sums.data(), out.data());
  return out.download() == expected;
}

bool is_right(Bug bug, Kernel kernel) {
  switch (kernel) {
    case kPipeline: return pipeline_is_right(bug);
    case kCluster: return cluster_is_right(bug);
    case kWarpRing: return warp_ring_is_right(bug);
    case kExchange: return exchange_is_right(bug);
    case kOneShot: return one_shot_is_right(bug);
  }
  return false;
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
