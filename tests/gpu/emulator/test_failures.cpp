// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Rules that a kernel breaks: refused with the lines, the block and the thread, and the next launch is well.
#include "tests/gpu/emulator/emulator_test.hpp"

#include <chrono>

namespace tree_attn::emulated::failures_test {
namespace {

constexpr unsigned kAll = 0xFFFFFFFF;

void nothing() { __syncthreads(); }
void two_barriers() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
void two_collectives() {
  if (threadIdx.x % 2 == 0) {
    __syncwarp();
  } else {
    __shfl_sync(kAll, 1, 0);
  }
}
void two_masks() { __ballot_sync(threadIdx.x % 2 == 0 ? kAll : 0xFFFFFFFE, 1); }
void own_lane_missing() { __syncwarp(2); }
void early_return() {
  if (threadIdx.x == 5) return;
  __syncthreads();
}
void first_returns() {
  if (threadIdx.x == 0) return;
  __syncthreads();
}
void late_return() {
  if (threadIdx.x != 5) __syncwarp();
}
void waits_for_warp() {
  if (threadIdx.x == 20) __shfl_sync(1u << 20 | 1u, 1, 20);
  __syncthreads();
}

TEST_CASE("emulator: threads that meet at different lines are told both") {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const SettingsScope scope({.seed = seed});
    const std::string error = error_of(two_barriers, {.grid = {3}, .block = {64}});
    CHECK(has(error, "__syncthreads meets __syncthreads at test_failures.cpp:"));
    CHECK(has(error, "block ("));
    // Who comes second is told: in ascending order the first thread of the other line.
    CHECK(has(error, seed == 0 ? "thread (32, 0, 0)" : "thread ("));
    const std::string other = error_of(two_collectives, {.block = {32}});
    CHECK((has(other, "__shfl_sync meets __syncwarp") || (seed != 0 && has(other, "__syncwarp meets __shfl_sync"))));
  }
  CHECK(error_of(nothing, {.block = {64}}).empty());
}

TEST_CASE("emulator: a mask must be the same for all and hold the own lane") {
  CHECK(has(error_of(two_masks, {.block = {32}}), "ffffffff"));
  CHECK(has(error_of(own_lane_missing, {.block = {1}}), "leaves out its own lane"));
  CHECK(has(error_of(late_return, {.block = {20}}), "lanes that the warp does not have"));
}

TEST_CASE("emulator: who waits for a thread that has exited is told so") {
  CHECK(has(error_of(first_returns, {.block = {64}}), "that has exited"));
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const SettingsScope scope({.seed = seed});
    CHECK(has(error_of(early_return, {.block = {64}}), "that has exited"));
    CHECK(has(error_of(late_return, {.block = {32}}), "exited"));
  }
}

TEST_CASE("emulator: a deadlock is reported with who waits where") {
  const std::string error = error_of(waits_for_warp, {.block = {32}});
  CAPTURE(error);
  CHECK(has(error, "deadlock"));
  CHECK(has(error, "31 wait at __syncthreads"));
  CHECK(has(error, "1 wait at __shfl_sync"));
}

void endless() {
  for (;;) __syncwarp();
}

TEST_CASE("emulator: a launch ends at its deadline") {
  const SettingsScope scope({.deadline = std::chrono::milliseconds(50)});
  const auto start = std::chrono::steady_clock::now();
  CHECK(has(error_of(endless, {.grid = {4}, .block = {64}}), "deadline"));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}

void neighbours(int n, bool leaves) {
  if (leaves && threadIdx.x >= 64) return;
  sync_neighbours(n);
}

TEST_CASE("emulator: neighbours that meet are whole warps of the block, all of them") {
  CHECK(error_of(neighbours, {.block = {128}}, 64, false).empty());
  for (const int n : {48, 96, 160})
    CHECK(has(error_of(neighbours, {.block = {128}}, n, false), "sync_neighbours: " + std::to_string(n) + " threads"));
  CHECK(has(error_of(neighbours, {.block = {128}}, 128, true), "sync_neighbours"));
}

void one_block_fails() {
  __syncthreads();
  if (blockIdx.x % 3 == 1 && threadIdx.x == 7) __syncwarp(0);
  __syncthreads();
}

TEST_CASE("emulator: of errors in many blocks one is thrown, and the next launch is well") {
  for (std::uint64_t seed = 0; seed < 2; ++seed) {
    const SettingsScope scope({.seed = seed});
    CHECK(has(error_of(one_block_fails, {.grid = {12}, .block = {64}}), "__syncwarp"));
    CHECK(error_of(nothing, {.grid = {12}, .block = {64}}).empty());
  }
}

TEST_CASE("emulator: a launch that no device could start is refused") {
  CHECK(has(error_of(nothing, {.block = {1025}}), "1 to 1024 threads"));
  CHECK(has(error_of(nothing, {.grid = {1, 70000}}), "cannot be launched"));
  CHECK(has(error_of(nothing, {.shared_bytes = 232449}), "shared memory"));
  CHECK(has(error_of(nothing, {.grid = {3}, .cluster = 2}), "clusters of 2"));
  CHECK(has(error_of(nothing, {.grid = {17}, .cluster = 17}), "1 to 16"));
  CHECK(error_of(nothing, {.grid = {4}, .shared_bytes = 232448, .cluster = 2}).empty());
  const auto cluster_of = [](int n, const Settings& settings) {
    const SettingsScope scope(settings);
    return error_of(nothing, {.grid = {static_cast<unsigned>(n)}, .cluster = n});
  };
  CHECK(has(cluster_of(2, {.n_multiprocessors = 1}), "the device has 1 multiprocessors"));
  CHECK(has(cluster_of(2, {.major = 8}), "compute capability 8"));
  CHECK(cluster_of(2, {.n_multiprocessors = 2}).empty());
  CHECK(has(cluster_of(9, {.n_multiprocessors = 16, .largest_cluster = 8}), "clusters of up to 8"));
  CHECK(cluster_of(16, {.n_multiprocessors = 16}).empty());
  const auto overlap_on = [](int major) {
    const SettingsScope scope({.major = major});
    return error_of(nothing, {.overlaps = true});
  };
  CHECK(has(overlap_on(8), "overlaps the one before it, which compute capability 8 cannot"));
  CHECK(overlap_on(9).empty());
}

/// On a GPU cudaFuncGetAttributes() says what the kernels were compiled for.
TEST_CASE("code version: a device without kernels, or with less shared memory than they take, is refused in one line") {
  constexpr int kBuilt[]{80, 90};
  const auto why = [&kBuilt](int version, int code, std::size_t kib) {
    return why_no_kernels("a device", version, code, kib * 1024, kBuilt);
  };
  CHECK(why(89, 80, 99).empty());
  CHECK(why(90, 90, 227).empty());
  CHECK(why(120, 80, 99).empty());  // from PTX
  CHECK(why(70, 0, 96) == "a device, compute capability 7.0: the program has no kernels for it, it was built for 8.0, 9.0");
  CHECK(why(120, 90, 99) ==
        "a device, compute capability 12.0: the program has no kernels for it, it was built for 8.0, 9.0");
}

}  // namespace
}  // namespace tree_attn::emulated::failures_test
