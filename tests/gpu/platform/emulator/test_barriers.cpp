// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief mbarriers, bulk copies, clusters and each other's shared memory.
#include "tree_attn/tests/gpu/platform/emulator/emulator_test.hpp"

namespace tree_attn::emulated {
namespace {

constexpr int kTile = 64, kTiles = 7, kStages = 2, kThreads = 64;

/// One thread copies tile after tile, all add them up.
void stream(const float* in, float* out, int n_bytes, int shift) {
  Arena arena;
  const Shared<float> ring = arena.take<float>(kStages * kTile);
  const Shared<Barrier> full = arena.take<Barrier>(kStages), empty = arena.take<Barrier>(kStages);
  const int i = static_cast<int>(threadIdx.x);
  if (i == 0) {
    for (int stage = 0; stage < kStages; ++stage) barrier_init(full + stage, 1), barrier_init(empty + stage, kThreads);
    barrier_fence_init();
  }
  __syncthreads();
  const auto start = [&](int tile) {
    const int stage = tile % kStages;
    if (tile >= kStages) barrier_wait(empty + stage, (tile / kStages - 1) & 1);
    barrier_arrive_expect(full + stage, n_bytes);
    bulk_copy(ring + stage * kTile + shift, in + tile * kTile, n_bytes, full + stage);
  };
  if (i == 0) start(0), start(1);
  float sum = 0;
  for (int tile = 0; tile < kTiles; ++tile) {
    const int stage = tile % kStages;
    barrier_wait(full + stage, tile / kStages & 1);
    sum += ring[stage * kTile + i];
    barrier_arrive(empty + stage);
    if (i == 0 && tile + kStages < kTiles) start(tile + kStages);
  }
  out[i] = sum;
}

TEST_CASE("emulator: bulk copies arrive in the order that their mbarriers ask for, whatever the seed") {
  const DeviceBuffer<float> in = ascending(kTiles * kTile), out(kThreads);
  const Launch config{.block = {kThreads}, .shared_bytes = kStages * kTile * 4 + 256};
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const SettingsScope scope({.seed = seed});
    launch(stream, config, {}, in.data(), out.data(), kTile * 4, 0);
    const auto sums = out.download();
    for (int i = 0; i < kThreads; ++i)
      CHECK(sums[static_cast<std::size_t>(i)] == kTiles * i + kTile * kTiles * (kTiles - 1) / 2);
  }
  CHECK(has(error_of(stream, config, in.data(), out.data(), 24, 0), "no multiple of 16"));
  CHECK(has(error_of(stream, config, in.data(), out.data(), 16, 1), "multiple of 16"));
  CHECK(has(error_of(stream, config, in.data() + 1, out.data(), 16, 0), "multiple of 16"));
  CHECK(has(error_of(stream, config, in.data() + 64, out.data(), kTile * 4, 0), "bulk_copy reads bytes 1792 to 2048"));
}

/// Every warp has a ring of its own: lane 0 readies the barriers and copies, no barrier of the block.
void stream_per_warp(const float* in, float* out) {
  Arena arena;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const Shared<float> ring = arena.take<float>(2 * kStages * 32) + warp * kStages * 32;
  const Shared<Barrier> full = arena.take<Barrier>(2 * kStages) + warp * kStages;
  const auto start = [&](int tile) {
    barrier_arrive_expect(full + tile % kStages, 128);
    bulk_copy(ring + tile % kStages * 32, in + (warp * kTiles + tile) * 32, 128, full + tile % kStages,
              CacheHint::EvictFirst);
  };
  if (lane == 0) {
    for (int stage = 0; stage < kStages; ++stage) barrier_init(full + stage, 1);
    barrier_fence_init();
    for (int stage = 0; stage < kStages; ++stage) start(stage);
  }
  __syncwarp();
  float sum = 0;
  for (int tile = 0; tile < kTiles; ++tile) {
    barrier_wait(full + tile % kStages, tile / kStages & 1);
    sum += ring[tile % kStages * 32 + lane];
    __syncwarp();
    if (lane == 0 && tile + kStages < kTiles) start(tile + kStages);
  }
  out[threadIdx.x] = sum;
}

TEST_CASE("emulator: warps copy for themselves, each with barriers of its own") {
  const DeviceBuffer<float> in = ascending(2 * kTiles * 32), out(64);
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const SettingsScope scope({.seed = seed});
    launch(stream_per_warp, {.block = {64}, .shared_bytes = 2 * kStages * 128 + 128}, {}, in.data(), out.data());
    const auto sums = out.download();
    for (int i = 0; i < 64; ++i) {
      const int first = i / 32 * kTiles * 32 + i % 32;
      CHECK(sums[static_cast<std::size_t>(i)] == static_cast<float>(kTiles * first + 32 * kTiles * (kTiles - 1) / 2));
    }
  }
}

void phases(int* out) {
  Arena arena;
  const Shared<Barrier> barrier = arena.take<Barrier>(1);
  if (threadIdx.x == 0) barrier_init(barrier, 32), barrier_fence_init();
  __syncthreads();
  int n = 0;
  for (int phase = 0; phase < 9; ++phase) {
    barrier_arrive(barrier);
    barrier_wait(barrier, phase & 1);
    ++n;
  }
  out[threadIdx.x] = n;
}
void arrive_twice() {
  Arena arena;
  const Shared<Barrier> barrier = arena.take<Barrier>(1);
  barrier_init(barrier, 1);
  barrier_fence_init();
  barrier_arrive_expect(barrier, 16);
  barrier_arrive(barrier);
}
void wait_for_nobody() {
  Arena arena;
  const Shared<Barrier> barrier = arena.take<Barrier>(1);
  barrier_init(barrier, 2);
  barrier_arrive(barrier);
  barrier_wait(barrier, 0);
}
void never_initialised() {
  Arena arena;
  const Shared<Barrier> barrier = arena.take<Barrier>(1);
  barrier_wait(barrier, 0);
}
void fence_of_another(const float* in) {
  Arena arena;
  const Shared<float> piece = arena.take<float>(4);
  const Shared<Barrier> barrier = arena.take<Barrier>(1);
  if (threadIdx.x == 0) barrier_init(barrier, 1);
  __syncwarp(3);
  if (threadIdx.x == 1) barrier_fence_init();
  __syncwarp(3);
  if (threadIdx.x == 0) barrier_arrive_expect(barrier, 16), bulk_copy(piece, in, 16, barrier);
  barrier_wait(barrier, 0);
}
void expects_too_little(const float* in, int n_copies) {
  Arena arena;
  const Shared<float> piece = arena.take<float>(8);
  const Shared<Barrier> barrier = arena.take<Barrier>(1);
  barrier_init(barrier, 1);
  barrier_fence_init();
  barrier_arrive_expect(barrier, 16);
  for (int i = 0; i < n_copies; ++i) bulk_copy(piece + 4 * i, in, 16, barrier);
  barrier_wait(barrier, 0);
}
/// Without a wait, into a piece of four numbers.
void copies_at(const float* in, int at) {
  Arena arena;
  const Shared<float> piece = arena.take<float>(4);
  const Shared<Barrier> barrier = arena.take<Barrier>(1);
  barrier_init(barrier, 1);
  barrier_fence_init();
  barrier_arrive_expect(barrier, 16);
  bulk_copy(piece + at, in, 16, barrier);
}
void no_fence(const float* in) {
  Arena arena;
  const Shared<float> piece = arena.take<float>(4);
  const Shared<Barrier> barrier = arena.take<Barrier>(1);
  barrier_init(barrier, 1);
  bulk_copy(piece, in, 16, barrier);
}

TEST_CASE("emulator: an mbarrier counts arrivals, phase by phase") {
  DeviceBuffer<int> out(32);
  launch(phases, {.block = {32}, .shared_bytes = 8}, {}, out.data());
  CHECK(out.download() == std::vector<int>(32, 9));
  CHECK(has(error_of(arrive_twice, {.shared_bytes = 8}), "one more than the 1 arrivals"));
  CHECK(has(error_of(wait_for_nobody, {.shared_bytes = 8}), "1 wait at barrier_wait"));
  const std::string error = error_of(never_initialised, {.shared_bytes = 8});
  CHECK((has(error, "never initialised") || has(error, "no thread has written")));
  const DeviceBuffer<float> in = ascending(4);
  CHECK(has(error_of(no_fence, {.shared_bytes = 136}, in.data()), "no barrier_fence_init()"));
  CHECK(has(error_of(copies_at, {.shared_bytes = 136}, in.data(), 0), "the block ends before the copy has arrived"));
  if (kMayLook) CHECK(has(error_of(copies_at, {.shared_bytes = 136}, in.data(), 4), "not wholly, in one piece"));
  CHECK(has(error_of(fence_of_another, {.block = {2}, .shared_bytes = 136}, in.data()), "by the thread that did it"));
  CHECK(error_of(expects_too_little, {.shared_bytes = 136}, in.data(), 1) == "");
  CHECK(has(error_of(expects_too_little, {.shared_bytes = 136}, in.data(), 2), "16 bytes, of which the barrier expects 0"));
}

void rotate(int* out) {
  Arena arena;
  const Shared<int> own = arena.take<int>(32);
  const int i = static_cast<int>(threadIdx.x), rank = cluster_rank(), size = cluster_size();
  own[i] = static_cast<int>(blockIdx.x) * 100 + i;
  cluster_sync();
  const int theirs = remote(own, (rank + 1) % size)[31 - i];
  remote(own, (rank + 1) % size)[31 - i] = theirs + 1000 * (rank + 1);
  cluster_sync();
  out[blockIdx.x * 32 + threadIdx.x] = own[i];
}
void bad_rank() {
  Arena arena;
  remote(arena.take<int>(1), 2);
}
void one_block_exits() {
  if (cluster_rank() == 1) return;
  cluster_sync();
}

TEST_CASE("emulator: blocks of a cluster read and write each other's shared memory") {
  DeviceBuffer<int> out(8 * 32);
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const SettingsScope scope({.seed = seed});
    launch(rotate, {.grid = {8}, .block = {32}, .shared_bytes = 128, .cluster = 4}, {}, out.data());
    const auto got = out.download();
    for (int i = 0; i < 8 * 32; ++i) {
      const int block = i / 32, before = (block + 3) % 4;
      CHECK(got[static_cast<std::size_t>(i)] == block * 100 + i % 32 + 1000 * (before + 1));
    }
  }
  CHECK(has(error_of(bad_rank, {.grid = {2}, .shared_bytes = 4, .cluster = 2}), "rank 2 in a cluster of 2"));
  CHECK(has(error_of(one_block_exits, {.grid = {2}, .block = {32}, .cluster = 2}), "exited"));
}

void last_block_adds(unsigned* counter, float* partial, float* out) {
  Arena arena;
  const Shared<int> is_last = arena.take<int>(1);
  if (threadIdx.x < 2) partial[2 * blockIdx.x + threadIdx.x] = static_cast<float>(blockIdx.x + 1);
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    const bool last = atomicAdd(counter, 1u) == gridDim.x - 1;
    __threadfence();
    is_last[0] = last ? 1 : 0;
  }
  __syncthreads();
  if (is_last[0] == 0 || threadIdx.x != 0) return;
  float sum = 0;
  for (unsigned i = 0; i < 2 * gridDim.x; ++i) sum += load_fresh(partial + i);
  *out = sum;
}

TEST_CASE("emulator: the last block to arrive sees what all have written") {
  DeviceBuffer<unsigned> counter(1);
  DeviceBuffer<float> partial(40), out(1);
  for (const int n_workers : {1, 2, 4}) {
    const SettingsScope scope({.seed = 3, .n_workers = n_workers});
    counter.fill(0);
    launch(last_block_adds, {.grid = {20}, .block = {32}, .shared_bytes = 4}, {}, counter.data(), partial.data(),
           out.data());
    CHECK(out.download()[0] == 420);
  }
}

}  // namespace
}  // namespace tree_attn::emulated
