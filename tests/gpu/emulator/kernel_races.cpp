// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Results of a library kernel that another stream reads: without an event that is a race, and both are named.
#include "gpu/backend/blocks.hpp"
#include "gpu/backend/kernel_stream.hpp"
#include "tests/gpu/emulator/emulator_test.hpp"
#include "tests/support/device_params.hpp"

#include <set>

namespace tree_attn::test {
namespace {

using emulated::error_in, emulated::has;

constexpr Axes kAxes{.heads = 2, .kv_heads = 2, .head_dim = 40, .value_dim = 40, .n_keys = 150, .dtype = DType::F32};

/// Message to the host that waits for two streams, of which the second goes on with what the first leaves and no event
/// holds it. With an event there must be none.
template <class First, class Second>
std::string race(device::Stream one, device::Stream two, const First& first, const Second& second) {
  std::string error;
  for (const bool orders : {true, false}) {
    first(one);
    device::Event event;
    event.record(one);
    if (orders) event.hold(two);
    second(two);
    error = error_in([&] { device::synchronise(one), device::synchronise(two); });
    INFO(error);
    CHECK((error == "") == orders);
  }
  return error;
}

}  // namespace

TEST_CASE("races: a copy of finished rows, or of states, that no event orders after the decode names the store") {
  const auto workload = normal_workload(9400, kAxes);
  const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
  const std::int64_t n_rows = shard.params.n_rows(), d_v = shard.params.d_v,
                     n_states = static_cast<std::int64_t>(cover(0, kAxes.n_keys).size()) * n_rows * state_size(d_v);
  std::set<std::string> stores;
  for (const device::LadderStep* step : device::all_kernels()) {
    if (step->refusal(shard.params, shard.dtype) != "") continue;
    const device::LaunchPlan plan = step->plan(shard.params, shard.dtype, {});
    const DeviceWorkspace workspace(plan);
    device::DeviceBuffer<float> out(n_rows * d_v), lse(n_rows), states(n_states);
    for (const device::DeviceBuffer<float>* read : {&out, &lse, &states}) {
      const bool reads_states = read == &states;
      if (reads_states && !step->keeps_states) continue;
      const DeviceOutput output =
          reads_states ? DeviceOutput{.states = states.data()} : DeviceOutput{.out = out.data(), .lse = lse.data()};
      // Of states the shift of the first, and an element of the last.
      for (const std::int64_t at : {std::int64_t{0}, read->size() - 1}) {
        INFO(std::string(step->name) << ", element " << at << " of " << read->size());
        std::vector<float> on_host(1);
        const device::OwnedStream one, two;
        const std::string error = race(
            one, two,
            [&](device::Stream stream) { step->run(shard.params, shard.dtype, output, plan, workspace.get(), stream); },
            [&](device::Stream stream) { read->queue_download(stream, on_host, at); });
        CAPTURE(error);
        CHECK(has(error, "race between streams: "));
        CHECK(has(error, "(download at kernel_races.cpp:"));
        const std::size_t store = error.find("(store_fresh at ");
        REQUIRE(store != std::string::npos);
        stores.insert(error.substr(store, error.find(':', store) - store));
      }
    }
  }
  CHECK(stores == std::set<std::string>{"(store_fresh at 01_naive.cu", "(store_fresh at 02_fused.cu",
                                        "(store_fresh at 03_vectors.cu", "(store_fresh at 04_split.cu",
                                        "(store_fresh at 05_copies.cu", "(store_fresh at combine.cuh"});
}

TEST_CASE("races: states that are finished before an event says that they are decoded, and rows that are read before that") {
  const auto workload = normal_workload(9401, kAxes);
  const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
  const std::int64_t n_rows = shard.params.n_rows(), d_v = shard.params.d_v,
                     z = static_cast<std::int64_t>(cover(0, kAxes.n_keys).size()) * n_rows * state_size(d_v),
                     lse = z + n_rows * d_v;
  const device::LaunchPlan plan = device::kEqualRuns.plan(shard.params, shard.dtype, {});
  const DeviceWorkspace workspace(plan);
  device::KernelStream on, other;
  const auto blocks = device::make_blocks(lse + n_rows, d_v, &on), taken = device::make_blocks(1, d_v, &other);
  const auto finish = [&](device::Stream) { blocks->finish({0, 0}, z, lse, n_rows); };
  const device::OwnedStream first;
  const std::string error = race(
      first, on,
      [&](device::Stream stream) {
        device::kEqualRuns.run(shard.params, shard.dtype, {.states = blocks->address(0)}, plan, workspace.get(), stream);
      },
      finish);
  CHECK_MESSAGE((has(error, "(load_fresh at blocks.cu:") && has(error, "(store_fresh at combine.cuh:")), error);
  for (const std::int64_t row : {z, lse}) {
    const std::string late = race(on, other, finish, [&](device::Stream) { taken->take(0, blocks->address(row), 1); });
    CHECK_MESSAGE(has(late, "(store_fresh at blocks.cu:"), late);
  }
}

}  // namespace tree_attn::test
