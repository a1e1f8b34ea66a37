// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Words of one instruction: powers of two, halves of words, the counter that wraps.
#include "tree_attn/tests/gpu/platform/emulator/emulator_test.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tree_attn::emulated::words_test {
namespace {

TEST_CASE("emulator: exp2_flushed has no subnormal results") {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  CHECK(exp2_flushed(0) == 1);
  CHECK(exp2_flushed(-1) == 0.5f);
  CHECK(exp2_flushed(0.5f) == std::exp2(0.5f));
  CHECK(exp2_flushed(-126) == 0x1p-126f);
  CHECK(exp2_flushed(-126.5f) == 0);
  CHECK(exp2_flushed(-149) == 0);
  CHECK(exp2_flushed(-kInf) == 0);
  CHECK_FALSE(std::signbit(exp2_flushed(-kInf)));
  CHECK(exp2_flushed(kInf) == kInf);
  CHECK(exp2_flushed(128) == kInf);
  CHECK(exp2_flushed(1e-45f) == 1);
  CHECK(std::isnan(exp2_flushed(std::numeric_limits<float>::quiet_NaN())));
}

void count(unsigned* counter, unsigned last, unsigned* before) {
  if (threadIdx.x == 0) before[blockIdx.x] = atomic_inc_acq_rel(counter, last);
}

TEST_CASE("emulator: atomic_inc_acq_rel counts every block once and wraps to zero") {
  DeviceBuffer<unsigned> counter(1), before(20);
  for (const int n_workers : {1, 4}) {
    const SettingsScope scope({.seed = 5, .n_workers = n_workers});
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
  }
  CHECK(has(error_of(count, {}, counter.data() + 1, 0u, before.data()), "atomic_inc_acq_rel writes bytes 4 to 8"));
}

void last_block_adds(unsigned* counter, float* partial, float* out) {
  Arena arena;
  const Shared<int> is_last = arena.take<int>(1);
  if (threadIdx.x < 2) partial[2 * blockIdx.x + threadIdx.x] = static_cast<float>(blockIdx.x + 1);
  __syncthreads();
  if (threadIdx.x == 0) is_last[0] = atomic_inc_acq_rel(counter, gridDim.x - 1) == gridDim.x - 1 ? 1 : 0;
  __syncthreads();
  if (is_last[0] == 0 || threadIdx.x != 0) return;
  float sum = 0;
  for (unsigned i = 0; i < 2 * gridDim.x; ++i) sum += load_fresh(partial + i);
  *out = sum;
}

TEST_CASE("emulator: what blocks wrote before atomic_inc_acq_rel is seen after the last increment") {
  DeviceBuffer<unsigned> counter(1);
  DeviceBuffer<float> partial(40), out(1);
  counter.fill(0);
  for (const int n_workers : {1, 2, 4}) {
    const SettingsScope scope({.seed = 3, .n_workers = n_workers});
    launch(last_block_adds, {.grid = {20}, .block = {32}, .shared_bytes = 4}, {}, counter.data(), partial.data(),
           out.data());
    CHECK(out.download()[0] == 420);
  }
}

}  // namespace
}  // namespace tree_attn::emulated::words_test
