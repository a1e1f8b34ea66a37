// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Arguments that break a precondition of distributed/ and gpu/backend/ are refused in every build, in a line with
/// the function and the values.
#include "distributed/exchange/exchange.hpp"
#include "distributed/program/measure.hpp"
#include "distributed/transport/thread_transport.hpp"
#include "gpu/backend/backends.hpp"
#include "gpu/backend/one_shot_session.hpp"
#include "reference/data/input_error.hpp"
#include "tests/support/decoding.hpp"
#include "tests/support/message.hpp"

#include <cmath>
#include <limits>
#include <stdexcept>

namespace tree_attn::test::arguments_test {
namespace {

constexpr double kTimeout = 30, kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kSlots = std::int64_t{1} << kPositionBits;

const AttentionShape kShape{.heads = 2, .kv_heads = 1, .head_dim = 4, .value_dim = 4};

using Ranges = std::vector<KeyRange>;
using Lengths = std::vector<std::int64_t>;

/// All algorithms on a backend.
std::vector<const Algorithm*> algorithms_on(const Backend& backend) {
  std::vector<const Algorithm*> all;
  for (const Algorithm& algorithm : backend.has_windows() ? all_algorithms() : algorithms()) all.push_back(&algorithm);
  return all;
}

}  // namespace

TEST_CASE("arguments: a decoder opens for ranges that touch from position 0 on, one per rank, as its cache holds them") {
  const auto workload = normal_workload(5330, {.n_keys = 200});
  const auto check = [&](const Ranges& ranges, KeyRange held, const char* line, const PlanOptions& options = {}) {
    for (const Backend* backend : {&cpu_backend(), &emulated::backend()}) {
      for (const Algorithm* algorithm : algorithms_on(*backend)) {
        CAPTURE(algorithm->name);
        run_threads(Topology::pretend(2, 2), kTimeout, [&](Transport& transport) {
          OpenShard shard = open_shard(*backend, workload->shape(), held, 200, workload->scale);
          if (transport.rank() == 0)
            CHECK_THROWS_WITH_AS(algorithm->open(transport, shard, ranges, options), line, std::invalid_argument);
          else
            CHECK_THROWS_AS(algorithm->open(transport, shard, ranges, options), std::invalid_argument);
        });
      }
    }
  };
  check({{0, 128}, {64, 200}}, {0, 128}, "Algorithm::open: range 1 begins at 64, but range 0 ends at 128");
  check({{0, 64}, {128, 200}}, {0, 64}, "Algorithm::open: range 1 begins at 128, but range 0 ends at 64");
  check({{128, 200}, {0, 128}}, {128, 200}, "Algorithm::open: range 1 begins at 0, but range 0 ends at 200");
  check({{0, 128}, {128, 100}}, {0, 128}, "Algorithm::open: range 1 is [128, 100), and positions ascend from 0 to 2^62");
  check({{64, 128}, {128, 200}}, {64, 128}, "Algorithm::open: the ranges begin at 64 instead of 0");
  check({{0, 70}, {70, 200}}, {0, 64}, "Algorithm::open: a range begins at 70, inside a leaf of 64 keys");
  check({{0, kOpenEnd}, {kOpenEnd, kOpenEnd}}, {0, kOpenEnd},
        "Algorithm::open: range 0 of 2 is open, and only the last may be");
  check({{0, 200}}, {0, 200}, "Algorithm::open: 1 ranges for 2 ranks");
  check({}, {0, 200}, "Algorithm::open: 0 ranges for 2 ranks");
  check({{0, 128}, {128, 200}}, {0, 64}, "Algorithm::open: the range of rank 0 is [0, 128), but its cache holds [0, 64)");
  check({{0, 128}, {128, 200}}, {0, 128}, "Algorithm::open: a radix of 1; 0 or at least 2", {.radix = 1});
  check({{0, 128}, {128, 200}}, {0, 128}, "Algorithm::open: a radix of nodes of -2; 0 or at least 2", {.node_radix = -2});
}

TEST_CASE("arguments: a decoder opens for the same nodes on every rank") {
  const Ranges ranges{{0, 64}, {64, 128}};
  run_threads(Topology::pretend(2, 2), kTimeout, [&](const ThreadRanks& threads, ThreadTransport&) {
    const auto transport = threads.open_transport(Topology::pretend(2, 1 + threads.rank()));
    OpenShard shard = open_shard(cpu_backend(), kShape, ranges[static_cast<std::size_t>(threads.rank())], 1);
    const std::string error = message<InputError>([&] { find_algorithm("two-level").open(*transport, shard, ranges); });
    CHECK_MESSAGE(error.starts_with("Algorithm::open: ranks 0 and 1 differ in hash of nodes ("), error);
  });
}

TEST_CASE("arguments: the dealt order ends with the last slot, and is not for one-shot") {
  run_threads(Topology::pretend(1, 1), kTimeout, [&](Transport& transport) {
    OpenShard half = open_shard(cpu_backend(), kShape, OwnedLeaves({0, kSlots / 2}, LeafOrder::kDealt), 64, 1);
    CHECK_THROWS_WITH_AS(find_algorithm("two-level").open(transport, half, Ranges{{0, kSlots / 2}}),
                         "Algorithm::open: the ranges end at 35184372088832; in the dealt order they end at 70368744177664",
                         std::invalid_argument);
    OpenShard shard = open_shard(emulated::backend(), kShape, OwnedLeaves({0, kSlots}, LeafOrder::kDealt), 64, 1);
    CHECK_THROWS_WITH_AS(find_algorithm("one-shot").open(transport, shard, dealt_ranges(1)),
                         "Algorithm::open: one-shot takes no dealt order of leaves", std::invalid_argument);
    CHECK_THROWS_AS(open_one_shot(*shard.cache, 1, {}), std::invalid_argument);
  });
  CHECK_THROWS_AS(
      find_algorithm("one-shot").cost(Topology::pretend(1, 1), 0, dealt_ranges(1), {kShape, 64, {}, LeafOrder::kDealt}),
      std::invalid_argument);
}

TEST_CASE("arguments: a step has lengths within the ranges, and queries with data") {
  const auto workload = normal_workload(5340, {.n_keys = 200});
  const Ranges ranges{{0, 64}, {64, 128}};
  for (const Backend* backend : {&cpu_backend(), &emulated::backend()}) {
    for (const Algorithm& algorithm : algorithms()) {
      CAPTURE(algorithm.name);
      run_threads(Topology::pretend(2, 2), kTimeout, [&](Transport& transport) {
        backend->use_gpu(transport.rank());
        const Shard all = workload->shard(ranges[static_cast<std::size_t>(transport.rank())]);
        OpenShard shard = open_shard(*backend, workload->query(0), all, Lengths{200}, workload->scale);
        const auto decoder = algorithm.open(transport, shard, ranges);
        CHECK_THROWS_WITH_AS(decoder->step({workload->query(0), Lengths{200}}),
                             "Decoder::step: batch entry 0 has 200 keys, but the ranges of all ranks end at 128",
                             std::out_of_range);
        CHECK_THROWS_AS(decoder->step({workload->query(0), Lengths{-1}}), std::out_of_range);
        CHECK_THROWS_AS(decoder->step({workload->query(0), Lengths{}}), std::invalid_argument);
        TensorView q = workload->query(0);
        q.data = nullptr;
        CHECK_THROWS_WITH_AS(decoder->step({q, Lengths{128}}), "DecodeSession::decode: q has no data",
                             std::invalid_argument);
        // Nothing was sent, and the next step is a step like any other.
        CHECK(decoder->step({workload->query(0), Lengths{128}}).lse.size() == 4);
      });
    }
  }
}

TEST_CASE("arguments: costs are of ranges that hold the sequences") {
  const WorkloadShape shape{kShape, 200, {}};
  const Topology topology = Topology::pretend(2, 2);
  for (const Algorithm& algorithm : all_algorithms()) {
    CAPTURE(algorithm.name);
    CHECK_THROWS_WITH_AS(algorithm.cost(topology, 0, Ranges{{0, 64}, {64, 128}}, shape),
                         "Algorithm::cost: 200 keys, but the ranges end at 128", std::invalid_argument);
    CHECK_THROWS_WITH_AS(algorithm.cost(topology, 0, Ranges{{0, 70}, {70, 200}}, shape),
                         "Algorithm::cost: a range begins at 70, inside a leaf of 64 keys", std::invalid_argument);
    CHECK_THROWS_WITH_AS(algorithm.cost(topology, 0, Ranges{{0, 200}}, shape), "Algorithm::cost: 1 ranges for 2 ranks",
                         std::invalid_argument);
    CHECK_THROWS_WITH_AS(algorithm.cost(topology, 2, Ranges{{0, 64}, {64, 200}}, shape), "Algorithm::cost: rank 2 of 2",
                         std::out_of_range);
    CHECK_THROWS_AS(algorithm.cost(topology, 0, Ranges{{0, 64}, {64, 200}}, {kShape, 200, {100, 100}}),
                    std::invalid_argument);
  }
  CHECK_THROWS_WITH_AS(step_time(std::vector<RankCost>{}, topology, kPaperCluster), "step_time: costs of 0 ranks, not 2",
                       std::invalid_argument);
}

TEST_CASE("arguments: a topology has ranks and nodes, and no others") {
  CHECK_THROWS_WITH_AS(Topology::pretend(3, 0), "Topology::pretend: 3 ranks in nodes of 0", std::invalid_argument);
  CHECK_THROWS_AS(Topology::pretend(-3, 1), std::invalid_argument);
  CHECK_THROWS_WITH_AS(Topology({}), "Topology: no ranks", std::invalid_argument);
  const Topology topology = Topology::pretend(3, 2);
  CHECK_THROWS_WITH_AS(topology.node_of(3), "Topology::node_of: rank 3 of 3", std::out_of_range);
  CHECK_THROWS_WITH_AS(topology.index_of(-1), "Topology::index_of: rank -1 of 3", std::out_of_range);
  CHECK_THROWS_WITH_AS(topology.node(2), "Topology::node: node 2 of 2", std::out_of_range);
  CHECK_THROWS_WITH_AS(topology.range_of(0, Ranges{{0, 1}}), "Topology::range_of: 1 ranges for 3 ranks",
                       std::invalid_argument);
}

TEST_CASE("arguments: a timeout is at least 0 and no NaN") {
  const Topology topology = Topology::pretend(1, 1);
  for (const double timeout : {kNaN, -1.0}) {
    CHECK_THROWS_AS(run_threads(topology, timeout, [](Transport&) {}), std::invalid_argument);
    CHECK_THROWS_AS(Deadline(0, timeout), std::invalid_argument);
    const auto cache = emulated::backend().make_cache({.heads = 1, .kv_heads = 1, .head_dim = 16, .value_dim = 16}, {0, 64});
    CHECK_THROWS_AS(open_one_shot(*cache, 1, {.timeout = timeout}), std::invalid_argument);
  }
  CHECK_THROWS_WITH_AS(run_threads(topology, kNaN, [](Transport&) {}), "ThreadNetwork: a timeout of nan s",
                       std::invalid_argument);
  CHECK_NOTHROW(run_threads(topology, std::numeric_limits<double>::infinity(), [](Transport&) {}));
}

TEST_CASE("arguments: ranks talk to ranks that exist, about as many bytes as they have") {
  run_threads(Topology::pretend(2, 1), kTimeout, [](const ThreadRanks& ranks, ThreadTransport& transport) {
    std::vector<std::byte> bytes(8);
    CHECK_THROWS_AS(transport.send(bytes, 2), std::out_of_range);
    CHECK_THROWS_AS(transport.receive(bytes, -1), std::out_of_range);
    CHECK_THROWS_WITH_AS(ranks.broadcast(bytes, 2, "a test"), "ThreadRanks::broadcast: rank 2 of 2", std::out_of_range);
    CHECK_THROWS_WITH_AS(static_cast<const Ranks&>(ranks).all_gather(std::span<const std::byte>(bytes), bytes, "a test"),
                         "ThreadRanks::all_gather: 8 bytes for 8 of each of 2 ranks", std::invalid_argument);
    CHECK_THROWS_AS(ranks.topology(-1), std::invalid_argument);
    CHECK_THROWS_WITH_AS(ranks.open_transport(Topology::pretend(3, 1)),
                         "ThreadRanks::open_transport: a topology of 3 ranks for 2", std::invalid_argument);
    // A NaN of any rank is the maximum of all.
    for (int odd = 0; odd < 2; ++odd) CHECK(std::isnan(ranks.all_max(ranks.rank() == odd ? kNaN : 1.0)));
  });
  CHECK_THROWS_WITH_AS(ThreadNetwork(0, 1), "ThreadNetwork: 0 ranks", std::invalid_argument);
}

TEST_CASE("arguments: schedules are of members that exist, and joined at least two at a time") {
  CHECK_THROWS_AS(butterfly(3, -1), std::out_of_range);
  CHECK_THROWS_AS(reduce_to_first(3, 3), std::out_of_range);
  CHECK_THROWS_WITH_AS(butterfly(0, 0), "butterfly: member 0 of 0", std::out_of_range);
  CHECK_THROWS_WITH_AS(n_rounds(8, 1), "n_rounds: 8 blocks joined 1 at a time", std::invalid_argument);
}

TEST_CASE("arguments: measurements have times, repetitions and outputs of one size") {
  CHECK_THROWS_WITH_AS(latency_of({}), "latency_of: no times", std::invalid_argument);
  const auto workload = make_workload({kShape, 8, {}}, 1, 1);
  const Verifier verify(*workload, 1, 1, cpu_backend());
  CHECK_THROWS_WITH_AS(verify(find_algorithm("ring"), {{1}, {1, 2}}),
                       "Verifier: an output of 1 and 2 elements, that of the oracle has 8 and 2", std::invalid_argument);
  run_threads(Topology::pretend(1, 1), kTimeout, [&](const ThreadRanks&, ThreadTransport& transport) {
    OpenShard shard = open_shard(cpu_backend(), workload->shape(), {0, 8}, 1);
    const Bench bench{transport, cpu_backend(), *workload, {{0, 8}}, 0, 0};
    CHECK_THROWS_WITH_AS(measure(bench, shard, find_algorithm("ring")), "measure: 0 repetitions to warm up, then 0",
                         std::invalid_argument);
  });
}

TEST_CASE("arguments: one-shot opens windows for ranges that touch, and steps after they are connected") {
  const AttentionShape shape{.heads = 1, .kv_heads = 1, .head_dim = 16, .value_dim = 16};
  CHECK_THROWS_AS(one_shot_bytes(Ranges{}, 0, 1, 16), std::invalid_argument);
  CHECK_THROWS_AS(one_shot_bytes(Ranges{{0, 64}, {64, 128}}, 2, 1, 16), std::out_of_range);
  CHECK_THROWS_AS(one_shot_bytes(Ranges{{0, 64}, {64, 128}}, -1, 1, 16), std::out_of_range);
  CHECK_THROWS_WITH_AS(one_shot_window_bytes(Ranges(17, KeyRange{0, 0}), 1, 16),
                       "one_shot_window_bytes: 17 ranks; at most 16", std::invalid_argument);
  CHECK_THROWS_AS(one_shot_window_bytes(Ranges{{0, 64}, {32, 128}}, 1, 16), std::invalid_argument);
  CHECK_THROWS_AS(one_shot_window_bytes(Ranges{{0, 64}}, -1, 16), std::invalid_argument);

  const auto cache = emulated::backend().make_cache(shape, {0, 64});
  const auto session = open_one_shot(*cache, 1, {.timeout = kTimeout});
  const std::vector<float> elements(16);
  const TensorView q = TensorView::dense(elements.data(), DType::F32, {1, 1, 1, 16});
  CHECK_THROWS_AS(session->connect({}), std::logic_error);
  CHECK_THROWS_AS(session->step({q, Lengths{0}}, {}), std::logic_error);
  CHECK_THROWS_AS(session->open_window(Ranges{{0, 64}, {0, 64}}, 0, 0, false), std::invalid_argument);
  CHECK_THROWS_AS(session->open_window(Ranges{{0, 64}}, 1, 0, false), std::out_of_range);
  CHECK_THROWS_WITH_AS(session->open_window(Ranges{{0, std::int64_t{1} << 38}}, 0, 0, false),
                       "one-shot: position 274877906944: more than 2^38 - 64", DeviceError);
  CHECK_THROWS_AS(session->open_window(Ranges{{0, 64}, {64, 128}}, 1, 0, false), std::invalid_argument);
  session->open_window(Ranges{{0, 64}}, 0, 0, false);
  CHECK_THROWS_AS(session->connect({}), std::invalid_argument);
  CHECK_THROWS_AS(open_one_shot(*cache, 1, {.timeout = 1, .steps_done = 0xFFFFFFFF}), std::invalid_argument);
  CHECK_THROWS_AS(emulated::backend().use_gpu(-1), std::out_of_range);
  CHECK_THROWS_AS(emulated::make_blocks(-1, 4), std::invalid_argument);
}

TEST_CASE("arguments: a cache on a device borrows rows from there, dense or not, of its types") {
  const AttentionShape shape{.heads = 1, .kv_heads = 1, .head_dim = 16, .value_dim = 16};
  const auto cache = emulated::backend().make_cache(shape, {0, 64});
  const auto blocks = emulated::make_blocks(2 * 64 * 16, 16);
  std::vector<float> numbers(2 * 64 * 16), rows(2 * 32 * 16);
  std::iota(numbers.begin(), numbers.end(), 0.0f);
  blocks->upload(0, numbers);
  const auto view = [&](std::int64_t at, std::int64_t stride) {
    return TensorView{
        reinterpret_cast<const std::byte*>(blocks->address(at)), DType::F32, {1, 1, 32, 16}, {512, 512, stride}, true};
  };
  for (const std::int64_t stride : {16, 32}) {
    cache->borrow({view(0, stride), view(1024, stride)}, Lengths{32});
    cache->shard(32, [&](std::size_t) { return reinterpret_cast<std::byte*>(rows.data()); });
    for (std::int64_t i = 0; i < 2 * 32 * 16; ++i)
      CHECK(rows[static_cast<std::size_t>(i)] == i / 512 * 1024 + i % 512 / 16 * stride + i % 16);
  }
  TensorView half = view(0, 16);
  half.dtype = DType::F16;
  CHECK_THROWS_AS(cache->borrow({half, view(1024, 16)}, Lengths{32}), std::invalid_argument);
}

}  // namespace tree_attn::test::arguments_test
