// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief mbarriers, bulk copies, clusters and each other's shared memory.
#include "tests/gpu/emulator/emulator_test.hpp"

namespace tree_attn::emulated {
namespace {

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
enum class Use { kCopy, kCopyOnce, kCopyTwice, kNoFence, kFenceOfAnother, kArriveTwice, kWaitForNobody, kNeverInitialised };

/// Thread 0 copies to a piece of eight numbers and does not wait, or uses the barrier in another way.
void use_barrier(Use use, const float* in, int at, int n_bytes) {
  Arena arena;
  const Shared<float> piece = arena.take<float>(8);
  const Shared<Barrier> barrier = arena.take<Barrier>(1);
  if (threadIdx.x == 0 && use != Use::kNeverInitialised) barrier_init(barrier, use == Use::kWaitForNobody ? 2 : 1);
  if (use == Use::kFenceOfAnother) __syncwarp(3);
  if (threadIdx.x == (use == Use::kFenceOfAnother ? 1 : 0) && use != Use::kNoFence) barrier_fence_init();
  if (use == Use::kFenceOfAnother) __syncwarp(3);
  if (threadIdx.x != 0) return;
  if (use <= Use::kArriveTwice) barrier_arrive_expect(barrier, n_bytes);
  if (use == Use::kArriveTwice || use == Use::kWaitForNobody) barrier_arrive(barrier);
  if (use <= Use::kFenceOfAnother) bulk_copy(piece + at, in, n_bytes, barrier);
  if (use == Use::kCopyTwice) bulk_copy(piece + 4, in, 16, barrier);
  if (use != Use::kCopy) barrier_wait(barrier, 0);
}

TEST_CASE("emulator: an mbarrier counts arrivals, phase by phase") {
  DeviceBuffer<int> out(32);
  launch(phases, {.block = {32}, .shared_bytes = 8}, {}, out.data());
  CHECK(out.download() == std::vector<int>(32, 9));
  const DeviceBuffer<float> in = ascending(4);
  const auto error = [&](Use use, unsigned n_threads = 1) {
    return error_of(use_barrier, {.block = {n_threads}, .shared_bytes = 136}, use, in.data(), 0, 16);
  };
  CHECK(has(error(Use::kArriveTwice), "one more than the 1 arrivals"));
  CHECK(has(error(Use::kWaitForNobody), "1 wait at barrier_wait"));
  CHECK((has(error(Use::kNeverInitialised), "never initialised") ||
         has(error(Use::kNeverInitialised), "no thread has written")));
  CHECK(has(error(Use::kNoFence), "no barrier_fence_init()"));
  CHECK(has(error(Use::kFenceOfAnother, 2), "by the thread that did it"));
  CHECK(error(Use::kCopyOnce) == "");
  CHECK(has(error(Use::kCopyTwice), "16 bytes, of which the barrier expects 0"));
  const auto copy = [&](const float* from, int at, int n_bytes) {
    return error_of(use_barrier, {.shared_bytes = 136}, Use::kCopy, from, at, n_bytes);
  };
  CHECK(has(copy(in.data(), 0, 16), "the block ends before the copy has arrived"));
  CHECK(has(copy(in.data(), 0, 24), "no multiple of 16"));
  CHECK(has(copy(in.data(), 1, 16), "multiple of 16"));
  CHECK(has(copy(in.data() + 1, 0, 16), "multiple of 16"));
  CHECK(has(copy(in.data() + 4, 0, 16), "bulk_copy reads bytes 16 to 32"));
  if (kMayLook) CHECK(has(copy(in.data(), 8, 16), "not wholly, in one piece"));
}

void rotate(int* out) {
  Arena arena;
  const Shared<int> own = arena.take<int>(32);
  const int i = static_cast<int>(threadIdx.x), rank = cluster_rank(), size = 4;
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

}  // namespace
}  // namespace tree_attn::emulated
