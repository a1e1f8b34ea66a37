// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Threads that wait for memory that others write: blocks that stay, launches that run beside each other, deadlocks.
#include "tests/gpu/emulator/emulator_test.hpp"

#include <chrono>
#include <thread>

namespace tree_attn::emulated {
namespace {

/// A counter that does not wrap.
constexpr unsigned kNever = 0xFFFFFFFF;

/// The line on which turns() waits.
constexpr int kTurnsWaits = __LINE__ + 5;
/// Blocks go on one after the other, the last one first; each adds its number to what the one before it has left.
void turns(unsigned* turn, float* sum) {
  const unsigned own = gridDim.x - 1 - blockIdx.x;
  if (threadIdx.x == 0) {
    wait_until([&] { return load_acquire(turn) == own; });
    store_fresh(sum, 2 * load_fresh(sum) + static_cast<float>(own));
  }
  __syncthreads();
  if (threadIdx.x == 31) atomic_inc_acq_rel(turn, kNever);
}

TEST_CASE("emulator: a block that waits keeps its place while the blocks run that it waits for") {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const SettingsScope scope({.seed = seed});
    DeviceBuffer<unsigned> turn(1, MemoryUse::Window);
    DeviceBuffer<float> sum(1);
    turn.fill(0), sum.fill(0);
    launch(turns, {.grid = {4}, .block = {32}, .is_cooperative = true}, Stream{}, turn.data(), sum.data());
    CHECK(sum.download()[0] == 11);  // ((0 2 + 1) 2 + 2) 2 + 3
  }
}

TEST_CASE("emulator: more waiting blocks than the device holds are a deadlock that counts those that never started") {
  const SettingsScope scope({.n_multiprocessors = 3});
  DeviceBuffer<unsigned> turn(1, MemoryUse::Window);
  DeviceBuffer<float> sum(1);
  sum.fill(0);
  const auto run = [&](unsigned n_blocks, bool is_cooperative) {
    turn.fill(0);
    return error_of(turns, {.grid = {n_blocks}, .block = {32}, .is_cooperative = is_cooperative}, turn.data(), sum.data());
  };
  CHECK(run(3, true) == "");
  CHECK(has(run(8, true), "a cooperative grid of 8 blocks; 3 fit the device at once"));
  const std::string error = run(8, false);
  CAPTURE(error);
  CHECK(has(error, "deadlock: all that could run wait for each other:"));
  CHECK(has(error, "test_waiting.cpp:" + std::to_string(kTurnsWaits) + ": 3 wait at wait_until, first block ("));
  CHECK(has(error, "93 wait at __syncthreads"));
  CHECK(has(error, "5 blocks have not started: more than fit the device beside those that wait"));
  // The next launch is well.
  CHECK(run(3, false) == "");
}

void waits_for(const unsigned* flag, unsigned value) {
  wait_until([&] { return load_acquire(flag) == value; });
}
void passes_on(const unsigned* from, unsigned* to, unsigned n) {
  for (unsigned i = 1; i <= n; ++i) {
    waits_for(from, i);
    atomic_inc_acq_rel(to, kNever);
  }
}
void starts(unsigned* to, const unsigned* back, unsigned n) {
  for (unsigned i = 1; i <= n; ++i) {
    atomic_inc_acq_rel(to, kNever);
    waits_for(back, i);
  }
}

TEST_CASE("emulator: launches of two streams that wait for each other run side by side") {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const SettingsScope scope({.seed = seed});
    DeviceBuffer<unsigned> there(1, MemoryUse::Window), back(1, MemoryUse::Window);
    there.fill(0), back.fill(0);
    const OwnedStream one, two;
    launch(passes_on, {}, two, there.data(), back.data(), 5u);
    launch(starts, {}, one, there.data(), back.data(), 5u);
    synchronise(one);
    CHECK(*back.data() == 5);
    synchronise(two);
    // In one stream they cannot.
    there.fill(0), back.fill(0);
    launch(passes_on, {}, one, there.data(), back.data(), 2u);
    launch(starts, {}, one, there.data(), back.data(), 2u);
    CHECK(has(error_in([&] { synchronise(one); }), "deadlock"));
  }
}

void tells(unsigned* to) { atomic_inc_acq_rel(to, kNever); }

TEST_CASE("emulator: a launch that has begun may wait for what the host queues later, and the host is not held up by it") {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const SettingsScope scope({.seed = seed});
    DeviceBuffer<unsigned> there(1, MemoryUse::Window), back(1, MemoryUse::Window);
    there.fill(0), back.fill(0);
    const OwnedStream one, two, three;
    launch(passes_on, {}, two, there.data(), back.data(), 2u);
    launch(tells, {}, three, there.data());
    launch(waits_for, {}, one, back.data(), 1u);
    synchronise(one);
    CHECK(*back.data() == 1);
    launch(tells, {}, three, there.data());
    synchronise(two);
    CHECK(*back.data() == 2);
  }
}

TEST_CASE("emulator: host threads whose launches wait for each other, and whose deadlock ends at the deadline") {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const bool is_deadlock = seed == 3;
    const SettingsScope scope(
        {.seed = seed, .deadline = std::chrono::milliseconds(is_deadlock ? 300 : 100'000), .n_hosts = 2});
    DeviceBuffer<unsigned> there(1, MemoryUse::Window), back(1, MemoryUse::Window);
    there.fill(0), back.fill(0);
    synchronise(Stream{});
    std::string errors[2];
    std::thread other(
        [&] { errors[0] = error_in([&] { launch(passes_on, {}, Stream{}, there.data(), back.data(), 5u); }); });
    errors[1] = error_in([&] {
      if (is_deadlock) launch(passes_on, {}, Stream{}, back.data(), there.data(), 5u);
      if (!is_deadlock) launch(starts, {}, Stream{}, there.data(), back.data(), 5u);
    });
    other.join();
    if (!is_deadlock) {
      CHECK(errors[0] + errors[1] == "");
      CHECK(*back.data() == 5);
      continue;
    }
    for (const std::string& error : errors) {
      CHECK(has(error, "the launch has run into its deadline:"));
      CHECK(has(error, "1 wait at wait_until"));
    }
  }
}

}  // namespace
}  // namespace tree_attn::emulated
