// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Plans on the memory of an emulated device: the bits of host memory (section 5.3).
#include "tree_attn/distributed/decoders/device_fabric.hpp"
#include "tree_attn/distributed/decoders/host_fabric.hpp"
#include "tree_attn/distributed/plan/plan_builder.hpp"
#include "tree_attn/distributed/transport/thread_transport.hpp"
#include "tree_attn/gpu/platform/emulator/launch.hpp"
#include "tree_attn/tests/distributed/decoders/forest_of.hpp"
#include "tree_attn/tests/support/decoding.hpp"

#include <random>

namespace tree_attn::test::device_fabric_test {
namespace {

constexpr double kTimeout = 60;
constexpr std::int64_t kRows = 3, kValueDim = 5;

struct Case {
  const Algorithm* algorithm;
  Topology topology;
  PlanOptions options;
};

/// All plans on a mixed grouping, and those of blocks of ranks on two nodes, with rows in slices too.
std::vector<Case> cases(int p) {
  std::vector<Case> cases;
  for (const Algorithm& algorithm : algorithms()) {
    if (std::holds_alternative<PlanOf>(algorithm.exchange)) cases.push_back({&algorithm, mixed_grouping(p), {}});
    if (algorithm.radix == nullptr) continue;
    for (const Topology& topology : {mixed_grouping(p), round_robin(p, 2)}) {
      for (const int radix : {2, 3})
        cases.push_back({&algorithm, topology, {.radix = radix, .slice_bytes = 0, .n_rows = kRows, .d_v = kValueDim}});
    }
  }
  return cases;
}

}  // namespace

TEST_CASE("device fabric: every plan has the bits and the counts of host memory") {
  const emulated::SettingsScope one_worker_per_rank({.n_workers = 1});
  std::mt19937 random(17);
  int n_copies = 0, n_empty = 0;
  for (const int p : {1, 2, 3, 5, 8}) {
    for (const bool no_keys : {false, true}) {
      std::vector<std::int64_t> lengths;
      for (int index = 0; index < p; ++index) lengths.push_back(no_keys ? 0 : static_cast<std::int64_t>(random() % 14));
      n_empty += std::count(lengths.begin(), lengths.end(), 0) > 0;
      const std::vector<KeyRange> ranges = ranges_of_lengths(lengths);
      for (const auto& [algorithm, topology, options] : cases(p)) {
        const PlanOf* const plan_of = std::get_if<PlanOf>(&algorithm->exchange);
        INFO(algorithm->name << " on " << p << " ranks, radix " << options.radix);
        std::vector<DecodeOutput> on_host(static_cast<std::size_t>(p)), on_device(on_host);
        std::vector<Traffic> host_traffic(static_cast<std::size_t>(p)), device_traffic(host_traffic);
        run_threads(topology, kTimeout, [&](ThreadTransport& transport) {
          const auto rank = static_cast<std::size_t>(transport.rank());
          const KeyRange range = topology.range_of(transport.rank(), ranges);
          // Row 1 has a NaN, row 2 an infinite value.
          const Forest<float> forest = forest_of(range.begin, range.end, kRows, kValueDim);
          std::vector<float> own(forest.states().begin(), forest.states().end());
          if (range.begin <= 7 && 7 < range.end) own[state_size(kValueDim) + kSum] = std::numeric_limits<float>::quiet_NaN();
          if (range.begin <= 11 && 11 < range.end) own[2 * state_size(kValueDim) + kValues] = HUGE_VALF;
          const Plan plan = (*plan_of)(topology, transport.rank(), ranges, options);
          HostFabric host(transport, plan, kRows, kValueDim);
          on_host[rank] = host.step(own).copy();
          host_traffic[rank] = transport.traffic();
          transport.clear_traffic();

          DeviceFabric fabric(transport, plan, kRows, kValueDim, emulated::make_blocks);
          emulated::DeviceBuffer<float> states(std::max<std::int64_t>(std::ssize(own), 1));
          states.upload(own);
          on_device[rank] = fabric.step(states.data()).copy();
          device_traffic[rank] = transport.traffic();
        });
        for (std::size_t rank = 0; rank < on_host.size(); ++rank) {
          CHECK(same_bits(on_device[rank], on_host[rank]));
          CHECK(device_traffic[rank].messages == host_traffic[rank].messages);
          CHECK(device_traffic[rank].bytes == host_traffic[rank].bytes);
          CHECK(device_traffic[rank].merge_steps == host_traffic[rank].merge_steps);
          CHECK(device_traffic[rank].collectives == host_traffic[rank].collectives);
        }
        for (int rank = 0; rank < p; ++rank) {
          for (const Operation& operation : (*plan_of)(topology, rank, ranges, options).operations)
            n_copies += std::holds_alternative<Copy>(operation);
        }
      }
    }
  }
  CHECK(n_copies > 0);
  CHECK(n_empty > 0);
}

}  // namespace tree_attn::test::device_fabric_test
