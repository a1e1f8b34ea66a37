// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Shuffles, votes, powers of two and the counter that wraps, against what they are defined to give; every thread
/// runs once, in an order that a seed gives.
#include "tests/gpu/emulator/emulator_test.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tree_attn::emulated {
namespace {

constexpr unsigned kAll = 0xFFFFFFFF;

void shuffles(int* from_lane, int* by_flip, int* in_groups, double* wide) {
  const int i = static_cast<int>(threadIdx.x), lane = i % 32;
  from_lane[i] = __shfl_sync(kAll, i, (lane + 5) % 32);
  by_flip[i] = __shfl_xor_sync(kAll, i, 6);
  in_groups[i] = __shfl_sync(kAll, i, 3, 8);
  wide[i] = __shfl_xor_sync(kAll, i + 0.25, 31);
}

TEST_CASE("emulator: shuffles give the number of the lane asked for") {
  DeviceBuffer<int> a(64), b(64), c(64);
  DeviceBuffer<double> d(64);
  launch(shuffles, {.block = {64}}, {}, a.data(), b.data(), c.data(), d.data());
  const auto from_lane = a.download(), by_flip = b.download(), in_groups = c.download();
  const auto wide = d.download();
  for (int i = 0; i < 64; ++i) {
    const auto at = static_cast<std::size_t>(i);
    CHECK(from_lane[at] == i / 32 * 32 + (i % 32 + 5) % 32);
    CHECK(by_flip[at] == (i ^ 6));
    CHECK(in_groups[at] == i / 8 * 8 + 3);
    CHECK(wide[at] == (i ^ 31) + 0.25);
  }
}

void votes(unsigned* out) {
  const int i = static_cast<int>(threadIdx.x);
  const unsigned lower = 0xFFFF, half = i < 16 ? lower : ~lower;
  const unsigned word[] = {__ballot_sync(kAll, i % 3 == 0), static_cast<unsigned>(__any_sync(kAll, i == 40)),
                           static_cast<unsigned>(__all_sync(kAll, i < 40)), __ballot_sync(half, i % 2)};
  for (int j = 0; j < 4; ++j) out[4 * i + j] = word[j];
}

TEST_CASE("emulator: votes count the lanes of the mask") {
  DeviceBuffer<unsigned> out(128);
  launch(votes, {.block = {32}}, {}, out.data());
  unsigned thirds = 0;
  for (unsigned i = 0; i < 32; i += 3) thirds |= 1u << i;
  const auto words = out.download();
  for (std::size_t i = 0; i < 32; ++i) {
    CHECK(words[4 * i] == thirds);
    CHECK(words[4 * i + 1] == 0);
    CHECK(words[4 * i + 2] == 1);
    CHECK(words[4 * i + 3] == (i < 16 ? 0xAAAAu : 0xAAAA0000u));
  }
}

void places(unsigned* out) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned n = blockDim.x * blockDim.y * blockDim.z;
  atomicAdd(out + block * n + thread, 1u);
}

TEST_CASE("emulator: every thread of every block runs once") {
  constexpr int kCount = 2 * 3 * 5 * 7 * 2 * 3;
  DeviceBuffer<unsigned> out(kCount);
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const SettingsScope scope({.seed = seed});
    out.fill(0);
    launch(places, {.grid = {2, 3, 5}, .block = {7, 2, 3}}, {}, out.data());
    const auto counts = out.download();
    CHECK(std::all_of(counts.begin(), counts.end(), [](unsigned n) { return n == 1; }));
  }
}

void arrival_order(unsigned* next, unsigned* order) { order[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(next, 1u); }

TEST_CASE("emulator: a seed gives an order, the same every time, and seed 0 the ascending one") {
  constexpr int kCount = 4 * 32;
  const auto order_of = [](std::uint64_t seed) {
    const SettingsScope scope({.seed = seed});
    DeviceBuffer<unsigned> next(1), order(kCount);
    next.fill(0);
    launch(arrival_order, {.grid = {4}, .block = {32}}, {}, next.data(), order.data());
    return order.download();
  };
  const auto ascending_order = order_of(0);
  CHECK(std::is_sorted(ascending_order.begin(), ascending_order.end()));
  CHECK(order_of(1) == order_of(1));
  CHECK(order_of(1) != ascending_order);
  CHECK(order_of(1) != order_of(2));
}

TEST_CASE("emulator: exp2_flushed has no subnormal results") {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  CHECK(exp2_flushed(0.5f) == std::exp2(0.5f));
  CHECK(exp2_flushed(-126) == 0x1p-126f);
  CHECK(exp2_flushed(-126.5f) == 0);
  CHECK(exp2_flushed(-kInf) == 0);
  CHECK_FALSE(std::signbit(exp2_flushed(-kInf)));
  CHECK(exp2_flushed(128) == kInf);
  CHECK(std::isnan(exp2_flushed(std::numeric_limits<float>::quiet_NaN())));
}

void count(unsigned* counter, unsigned last, unsigned* before) {
  if (threadIdx.x == 0) before[blockIdx.x] = atomic_inc_acq_rel(counter, last);
}

TEST_CASE("emulator: atomic_inc_acq_rel counts every block once and wraps to zero") {
  DeviceBuffer<unsigned> counter(1), before(20);
  const SettingsScope scope({.seed = 5});
  counter.fill(0);
  launch(count, {.grid = {20}, .block = {2}}, {}, counter.data(), 19u, before.data());
  std::vector<unsigned> seen = before.download();
  std::sort(seen.begin(), seen.end());
  for (unsigned i = 0; i < 20; ++i) CHECK(seen[i] == i);
  CHECK(counter.download()[0] == 0);
  // 20 increments modulo 7.
  launch(count, {.grid = {20}, .block = {2}}, {}, counter.data(), 6u, before.data());
  CHECK(counter.download()[0] == 6);
  // A counter beyond the last wraps as well.
  counter.fill(0x01);
  launch(count, {}, {}, counter.data(), 6u, before.data());
  CHECK(counter.download()[0] == 0);
  CHECK(has(error_of(count, {}, counter.data() + 1, 0u, before.data()), "atomic_inc_acq_rel writes bytes 4 to 8"));
}

}  // namespace
}  // namespace tree_attn::emulated
