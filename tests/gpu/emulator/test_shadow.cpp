// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Shadow mode: which barriers order what, and that the order in which fibers ran is no excuse.
#if defined(TREE_ATTN_EMULATOR_SHADOW)
#include "tests/gpu/emulator/emulator_test.hpp"

namespace tree_attn::emulated::shadow_test {
namespace {

constexpr unsigned kAll = 0xFFFFFFFF;

enum class Order { kNone, kWarp, kOneWarp, kTwoWarps, kBlock, kShuffle, kVote, kBarrier, kCluster };

/// Lane 0 writes, some other thread reads, whatever stands between.
void write_and_read(Order order, int reader, bool backwards) {
  Arena arena;
  const Shared<float> number = arena.take<float>(1);
  const Shared<Barrier> barrier = arena.take<Barrier>(1);
  const int i = static_cast<int>(threadIdx.x), writer = 0;
  if (i == 0) number[0] = 1, barrier_init(barrier, static_cast<int>(blockDim.x)), barrier_fence_init();
  __syncthreads();
  if (!backwards && i == writer) number[0] = 2;
  if (backwards && i == reader) static_cast<void>(number[0] == 0.0f);
  switch (order) {
    case Order::kNone: break;
    case Order::kWarp: __syncwarp(); break;
    case Order::kOneWarp: sync_neighbours(32); break;
    case Order::kTwoWarps: sync_neighbours(64); break;
    case Order::kBlock: __syncthreads(); break;
    case Order::kShuffle: __shfl_sync(kAll, 1, 0); break;
    case Order::kVote: __any_sync(kAll, 1); break;
    case Order::kBarrier: barrier_arrive(barrier), barrier_wait(barrier, 0); break;
    case Order::kCluster: cluster_sync(); break;
  }
  if (backwards && i == writer) number[0] = 2;
  if (!backwards && i == reader) static_cast<void>(number[0] == 0.0f);
}

TEST_CASE("emulator shadow: barriers order memory, shuffles and votes do not") {
  const Launch config{.block = {64}, .shared_bytes = 136};
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    for (const bool backwards : {false, true}) {
      CAPTURE(seed);
      CAPTURE(backwards);
      const SettingsScope scope({.seed = seed});
      const auto error = [&](Order order, int reader) { return error_of(write_and_read, config, order, reader, backwards); };
      CHECK(has(error(Order::kNone, 1), "race"));
      CHECK(has(error(Order::kShuffle, 1), "race"));
      CHECK(has(error(Order::kVote, 1), "race"));
      CHECK(error(Order::kWarp, 1).empty());
      CHECK(has(error(Order::kWarp, 32), "race"));
      CHECK(error(Order::kOneWarp, 1).empty());
      CHECK(has(error(Order::kOneWarp, 32), "race"));
      CHECK(error(Order::kTwoWarps, 32).empty());
      CHECK(error(Order::kBlock, 32).empty());
      CHECK(error(Order::kBarrier, 32).empty());
      CHECK(error(Order::kCluster, 32).empty());
      CHECK(error(Order::kNone, 0).empty());
    }
  }
}

TEST_CASE("emulator shadow: a race names both lines and both threads") {
  const std::string error = error_of(write_and_read, {.block = {64}, .shared_bytes = 136}, Order::kNone, 9, false);
  CHECK(has(error, "test_shadow.cpp:"));
  CHECK(has(error, "thread (0, 0, 0)"));
  CHECK(has(error, "thread (9, 0, 0)"));
}

void halves() {
  Arena arena;
  const Shared<Half> pair = arena.take<Half>(64);
  pair[static_cast<int>(threadIdx.x)] = Half{0};
}
void bytes16() {
  Arena arena;
  const Shared<float> piece = arena.take<float>(8);
  if (threadIdx.x == 0) store16(piece, Bytes16{});
  if (threadIdx.x == 1) static_cast<void>(piece[3] == 0.0f);
}

TEST_CASE("emulator shadow: neighbours do not race, overlapping accesses of any width do") {
  CHECK(error_of(halves, {.block = {64}, .shared_bytes = 128}).empty());
  CHECK(!error_of(bytes16, {.block = {2}, .shared_bytes = 32}).empty());
}

void reads_before_the_wait(const float* from) {
  Arena arena;
  const Shared<float> piece = arena.take<float>(8);
  copy_async16(piece, from, 16);
  copy_async_commit();
  piece[4] = piece[0];
  copy_async_wait<0>();
}

TEST_CASE("emulator shadow: what an asynchronous copy has not brought yet is not read") {
  DeviceBuffer<float> in(4);
  in.fill(0);
  CHECK(has(error_of(reads_before_the_wait, {.shared_bytes = 32}, in.data()), "reads what a copy of test_shadow.cpp:"));
}

/// The first block of a cluster reads shared memory of the other.
void read_neighbour(int* out, bool waits) {
  Arena arena;
  const Shared<int> own = arena.take<int>(1);
  own[0] = cluster_rank();
  cluster_sync();
  if (cluster_rank() == 0) out[0] = remote(own, 1)[0];
  if (waits) cluster_sync();
}

TEST_CASE("emulator shadow: a block of a cluster ends only after the others have read its shared memory") {
  DeviceBuffer<int> out(1);
  std::string errors;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    CAPTURE(seed);
    const SettingsScope scope({.seed = seed});
    const auto error = [&](bool waits) {
      return error_of(read_neighbour, {.grid = {2}, .shared_bytes = 16, .cluster = 2}, out.data(), waits);
    };
    CHECK(error(true) == "");
    const std::string found = error(false);
    CHECK(has(found, "shared memory of a block that"));
    errors += found;
  }
  // Which of the two is found depends on which block is faster.
  CHECK(has(errors, "shared memory of a block that does not wait, and may have ended"));
  CHECK(has(errors, "shared memory of a block that has ended"));
}

/// The first warp initialises a barrier and arrives at it, the second waits for it.
void init_and_wait(bool meets) {
  Arena arena;
  const Shared<Barrier> barrier = arena.take<Barrier>(1);
  if (threadIdx.x == 0) barrier_init(barrier, 1), barrier_fence_init();
  if (meets) __syncthreads();
  if (threadIdx.x == 0) barrier_arrive(barrier);
  if (threadIdx.x == 32) barrier_wait(barrier, 0);
}

TEST_CASE("emulator shadow: an mbarrier is used only past a barrier after it was initialised") {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    CAPTURE(seed);
    const SettingsScope scope({.seed = seed});
    const auto error = [](bool meets) { return error_of(init_and_wait, {.block = {64}, .shared_bytes = 16}, meets); };
    CHECK(error(true) == "");
    const std::string found = error(false);
    CHECK((has(found, "race") || has(found, "reads shared memory that no thread has written")));
  }
}

enum class Fence { kNone, kBeforeWrite, kByWriter, kByOther, kByCopier, kBehindLastBarrier };

/// One thread writes, another starts bulk copies to the same bytes, whatever fence stands between.
void write_and_copy(Fence fence, bool by_async_copy, const float* from) {
  Arena arena;
  const Shared<float> piece = arena.take<float>(4);
  const Shared<Barrier> barrier = arena.take<Barrier>(1);
  const int i = static_cast<int>(threadIdx.x), writer = 0, other = 40, copier = 33;
  const auto fences = [&](int thread, Fence where) {
    if (i == thread && fence == where) async_proxy_fence();
  };
  if (i == copier) barrier_init(barrier, 1), barrier_fence_init();
  __syncthreads();
  fences(writer, Fence::kBeforeWrite);
  if (i == writer && by_async_copy) copy_async16(piece, from, 16), copy_async_commit(), copy_async_wait<0>();
  if (i == writer && !by_async_copy) piece[3] = 1;
  fences(writer, Fence::kByWriter);
  __syncthreads();
  fences(other, Fence::kByOther);
  __syncthreads();
  fences(other, Fence::kBehindLastBarrier);
  if (i != copier) return;
  fences(copier, Fence::kByCopier);
  // The second copy overwrites what the first has brought: both are of the same proxy.
  for (int round = 0; round < 2; ++round) {
    barrier_arrive_expect(barrier, 16);
    bulk_copy(piece, from, 16, barrier);
    barrier_wait(barrier, round);
  }
}

TEST_CASE("emulator shadow: a bulk copy overwrites what a thread has written only past a fence of proxies") {
  DeviceBuffer<float> in(4);
  in.fill(0);
  for (const bool by_async_copy : {false, true}) {
    CAPTURE(by_async_copy);
    const auto error = [&](Fence fence) {
      return error_of(write_and_copy, {.block = {64}, .shared_bytes = 136}, fence, by_async_copy, in.data());
    };
    for (const Fence fence : {Fence::kNone, Fence::kBeforeWrite, Fence::kBehindLastBarrier})
      CHECK(has(error(fence), "no async_proxy_fence() lies between"));
    for (const Fence fence : {Fence::kByWriter, Fence::kByOther, Fence::kByCopier}) CHECK(error(fence).empty());
  }
}

void pointers(int* out) {
  Arena arena;
  const Shared<int> p = arena.take<int>(8);
  for (int i = 0; i < 8; ++i) p[i] = i;
  Shared<const int> q = p + 3;
  out[0] = *q++ + *q;
  out[1] = static_cast<int>(q - p);
  p[1] += 5, p[1] *= 2, ++p[1];
  p[2] = p[1];
  out[2] = p[2];
  out[3] = q > p && 1 + p == p + 1 && &p[3] == p + 3;
}

TEST_CASE("emulator shadow: a checked pointer does what a pointer does") {
  DeviceBuffer<int> out(4);
  launch(pointers, {.shared_bytes = 32}, {}, out.data());
  CHECK(out.download() == std::vector<int>{7, 4, 13, 1});
}

}  // namespace
}  // namespace tree_attn::emulated::shadow_test
#endif
