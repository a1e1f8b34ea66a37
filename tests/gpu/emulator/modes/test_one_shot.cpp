// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The library kernel with its exchange in the modes of the emulator that watch it, on devices of one host thread.
#include "gpu/emulator/settings.hpp"
#include "gpu/engine/equal_runs.cuh"
#include "gpu/engine/one_shot.cuh"
#include "tests/support/device_params.hpp"
#include "tests/support/message.hpp"

#include <memory>

namespace tree_attn::test::one_shot_test {
namespace {

#if defined(TREE_ATTN_EMULATOR_THREAD)
constexpr std::uint64_t kSeeds[] = {0, 1};  // a fiber costs TSan nearly half a millisecond
constexpr int kSteps = 2;
#else
constexpr std::uint64_t kSeeds[] = {0, 1, 2};
constexpr int kSteps = 3;
#endif

/// One device: its keys and its window, on a stream of its own.
template <class T>
struct Device {
  Device(TensorWorkload& workload, std::span<const KeyRange> ranges, int me)
      : shard(workload.query(0), workload.shard(ranges[static_cast<std::size_t>(me)]), workload.lengths(), workload.scale),
        peers(Peers::of(ranges, me, shard.params.n_rows(), shard.params.d_v)),
        window(peers.n_window(), MemoryUse::Window),
        steps(shard.params.n_rows(), MemoryUse::Window),
        gave_up(1, MemoryUse::Window),
        out(shard.params.n_rows() * shard.params.d_v),
        lse(shard.params.n_rows()),
        plan(device::plan_equal_runs<T>(shard.params, device::LaunchOptions{})),
        workspace(plan) {
    window.fill(0), steps.fill(0), gave_up.fill(0);
    device::synchronise(device::Stream{});
    peers.steps = steps.data(), peers.gave_up = gave_up.data();
  }
  void queue() {
    out.fill(0xFF), lse.fill(0xFF);
    device::synchronise(device::Stream{});
    device::run_one_shot(shard.params, shard.dtype, peers, {.out = out.data(), .lse = lse.data()}, plan, workspace.get(),
                         stream);
  }
  DecodeOutput output() {
    device::synchronise(stream);
    return {out.download(), lse.download()};
  }

  DeviceShard shard;
  Peers peers;
  device::DeviceBuffer<Packet> window;
  device::DeviceBuffer<unsigned> steps;
  device::DeviceBuffer<GaveUp> gave_up;
  device::DeviceBuffer<float> out, lse;
  device::LaunchPlan plan;
  device::DeviceWorkspace workspace;
  device::OwnedStream stream;
};

/// Decodes the same step kSteps times on one device per range. @returns outputs that differ from those of one device
template <class T>
int n_different(TensorWorkload& workload, std::span<const KeyRange> ranges, std::uint64_t seed) {
  const int n = static_cast<int>(ranges.size());
  const emulated::SettingsScope scope({.seed = seed, .n_multiprocessors = 2, .n_devices = n});
  const DecodeOutput want = run_step(device::kEqualRuns, workload);
  std::vector<std::unique_ptr<Device<T>>> devices;
  const auto on_each = [&](const auto& f) {
    for (int i = 0; i < n; ++i) device::set_device(i), f(i);
    device::set_device(0);
  };
  on_each([&](int me) {
    for (int other = 0; other < n; ++other) {
      if (other != me) device::enable_peer_access(other);
    }
    devices.push_back(std::make_unique<Device<T>>(workload, ranges, me));
  });
  for (const auto& to : devices) {
    for (int i = 0; i < n; ++i) to->peers.window[i] = devices[static_cast<std::size_t>(i)]->window.data();
  }
  int n_wrong = 0;
  for (int step = 0; step < kSteps; ++step) {
    on_each([&](int me) { devices[static_cast<std::size_t>(me)]->queue(); });
    on_each([&](int me) { n_wrong += !same_output(devices[static_cast<std::size_t>(me)]->output(), want); });
  }
  on_each([&](int me) { CHECK(devices[static_cast<std::size_t>(me)]->gave_up.download()[0].n == 0); });
  on_each([&](int me) { devices[static_cast<std::size_t>(me)].reset(); });
  return n_wrong;
}

}  // namespace

/// @tested{alg_3, Alg. 3}
TEST_CASE("modes: one-shot on three devices, one of them without keys, has the bits of one device") {
  constexpr std::int64_t kKeys = 256;
  const std::vector<std::int64_t> lengths{229};
  const KeyRange ranges[] = {{0, 128}, {128, 128}, {128, kKeys}};
  for (const std::uint64_t seed : kSeeds) {
    CAPTURE(seed);
    const auto on_scalar_cores = normal_workload(
        9300, {.heads = 2, .kv_heads = 2, .head_dim = 64, .value_dim = 64, .n_keys = kKeys, .dtype = DType::F32}, lengths);
    CHECK(n_different<float>(*on_scalar_cores, ranges, seed) == 0);
    for (const std::int64_t heads : {4, 19}) {
      const auto on_tensor_cores = normal_workload(
          9301, {.heads = heads, .kv_heads = 1, .head_dim = 64, .value_dim = 64, .n_keys = kKeys, .dtype = DType::BF16},
          lengths);
      CHECK(n_different<BFloat16>(*on_tensor_cores, ranges, seed) == 0);
    }
  }
}

/// @tested{alg_3, Alg. 3}
TEST_CASE("modes: one-shot replaces sums that are not finite, with the bits of one device") {
  const Axes axes{.heads = 4, .kv_heads = 1, .head_dim = 64, .value_dim = 160, .n_keys = 256, .dtype = DType::BF16};
  const KeyRange ranges[] = {{0, 128}, {128, 256}};
  for (const std::int64_t position : {70, 200}) {
    std::mt19937 random(9302);
    Tensor q = normal_tensor(random, axes.q(), axes.dtype), k = normal_tensor(random, axes.k(), axes.dtype),
           v = normal_tensor(random, axes.v(), axes.dtype);
    // A key that no query sees, for its score is -inf: a weight of 0 times Inf would be NaN.
    for (std::int64_t h = 0; h < axes.heads; ++h) q.set(0, h, 0, 3, 1);
    k.set(0, 0, position, 3, -std::numeric_limits<float>::infinity());
    v.set(0, 0, position, 150, std::numeric_limits<float>::infinity());
    const auto workload = workload_of(std::move(q), std::move(k), std::move(v), std::vector<std::int64_t>{229});
    CHECK(n_different<BFloat16>(*workload, ranges, 0) == 0);
  }
}

}  // namespace tree_attn::test::one_shot_test
