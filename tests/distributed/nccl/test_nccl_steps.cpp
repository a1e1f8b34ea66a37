// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Copies, launches and memory of a step over NCCL.
#include "gpu/backend/device_steps.hpp"
#include "gpu/engine/peers.hpp"
#include "tests/distributed/nccl/nccl_ranks.hpp"
#include "tests/support/one_shot_runs.hpp"
#include "tests/support/query_steps.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace tree_attn::test {
namespace {

/// Counts requests to the devices so far: allocations, uploads, bytes uploaded and downloaded, launches, launches of graphs.
std::array<std::int64_t, 6> asked_so_far() {
  const DeviceTraffic& all = emulated::traffic();
  return {all.n_allocations, all.n_uploads, all.bytes_uploaded, all.bytes_downloaded, all.n_launches, all.n_replays};
}

/// Rank 0 acts while all ranks are here.
template <class Act>
void when_all_are_here(const Ranks& ranks, const Act& act) {
  ranks.barrier();
  if (ranks.rank() == 0) act();
  ranks.barrier();
}

constexpr std::int64_t kKeys = 250;  ///< with which a run begins

/// Decodes the steps of a run by an algorithm, each rank with a cache of its own, and checks the bits.
/// @param[out] counted in the last step @returns how many graphs all ranks have launched in every step
std::vector<std::int64_t> graphs_in_steps(const one_shot::Run& run, const char* algorithm, Kind kind, Traffic& counted) {
  INFO(algorithm << ", " << one_shot::text(run));
  const std::vector<DecodeOutput> want = one_shot::gather_alone(run, kKeys);
  const bool keeps_bits = find_algorithm(algorithm).keeps_bits;
  std::mutex mutex;
  int n_wrong = 0;
  std::vector<std::int64_t> n_graphs;
  const auto body = [&](const Ranks& ranks, NcclTransport& transport) {
    one_shot::RankRun rank(run, kKeys, transport);
    one_shot::decode_steps(
        transport, rank, algorithm,
        [&] {
          transport.clear_traffic();
          when_all_are_here(ranks, [&] { n_graphs.push_back(-emulated::traffic().n_replays); });
        },
        [&](int t, const DecodeOutput& output) {
          when_all_are_here(ranks, [&] { n_graphs.back() += emulated::traffic().n_replays; });
          const std::lock_guard lock(mutex);
          n_wrong += keeps_bits && !same_bits(output, want[static_cast<std::size_t>(t)]);
        });
    const std::lock_guard lock(mutex);
    add(counted, transport.traffic());
  };
  run_nccl(one_shot::topology_of(run), 60, "", body, kind);
  CHECK(n_wrong == 0);
  return n_graphs;
}

}  // namespace

TEST_CASE("nccl: a ring computes on its own shard while the next one is on its way: here it never comes") {
  const auto workload = normal_workload(1310, {.kv_heads = 2, .head_dim = 64, .value_dim = 64, .n_keys = 128});
  run_nccl(Topology::pretend(2, 2), 0.5, "silent 1 1", [&](const Ranks& ranks, NcclTransport& transport) {
    OpenRank rank(*workload, even_ranges(128, 2, kLeafKeys), transport, "ring");
    const std::int64_t before = launches_of_thread();
    const std::string error = message<TransportError>([&] { rank.step(); });
    if (ranks.rank() != 0) return;
    CHECK(error == "rank 0 waited 0.5 s for the message of rank 1 over NCCL and gave up");
    CHECK(launches_of_thread() > before);
  });
}

TEST_CASE("nccl: a step is one upload of one position, queries and lengths, no allocation, and one graph") {
  const one_shot::Run run{.p = 2, .steps = 6, .dtype = DType::BF16, .group = 4, .head_dim = 64};
  const Topology topology = Topology::pretend(run.p, run.p);
  // Both ranges stay one leaf, so each rank has one state per row.
  const std::vector<KeyRange> ranges{{0, kLeafKeys}, {kLeafKeys, kOpenEnd}};
  constexpr std::int64_t kFew = 100;
  const WorkloadShape shape = one_shot::shape_of(run, kFew + run.steps);
  const std::int64_t n_rows = shape.n_rows(), row_bytes = shape.head_dim * static_cast<std::int64_t>(bytes_of(shape.dtype));
  const auto aligned = [](std::int64_t n_bytes) { return (n_bytes + 15) / 16 * 16; };
  const std::int64_t uploaded =
      aligned(shape.bytes_per_position()) + aligned(n_rows * row_bytes) + 2 * aligned(shape.batch * 8);
  const std::int64_t downloaded = n_rows * (shape.value_dim + 1) * 4;
  // The graph of one-shot also brings what a wait that gave up would say.
  std::vector<std::pair<std::string_view, std::int64_t>> of_states{{"one-shot", sizeof(GaveUp)}};
  for (const Algorithm& each : algorithms()) {
    if (each.kv_shards_in_flight == 0) of_states.emplace_back(each.name, 0);
  }
  const std::int64_t p = run.p;
  for (const auto& [algorithm, further_bytes] : of_states) {
    CAPTURE(algorithm);
    std::array<std::int64_t, 6> asked{};  // of the last step, of all ranks
    run_nccl(topology, 60, "", [&](const Ranks& ranks, NcclTransport& transport) {
      const auto workload = make_workload(shape, 47, run.steps);
      const OwnedLeaves leaves(topology.range_of(ranks.rank(), ranges), run.order);
      OpenShard shard = open_shard(emulated::backend(), shape, leaves, kFew + run.steps, one_shot::kScale);
      const std::unique_ptr<Decoder> decoder = find_algorithm(algorithm).open(transport, shard, ranges);
      for (int t = 0; t < run.steps; ++t) {
        fill(*shard.cache, *workload, workload->lengths(t));
        when_all_are_here(ranks, [&] { asked = asked_so_far(); });
        decoder->step({workload->query(t), workload->lengths(t)});
        // In the first steps memory is taken, and graphs are recorded.
        when_all_are_here(ranks, [&] {
          for (std::size_t i = 0; i < asked.size(); ++i) asked[i] = asked_so_far()[i] - asked[i];
          CAPTURE(t);
          if (t >= 3) CHECK(asked == std::array{0L, p, p * uploaded, p * (downloaded + further_bytes), 0L, p});
        });
      }
    });
  }
}

TEST_CASE("nccl: steps of other numbers of queries take no memory, and the graphs of the last four numbers are kept") {
  const std::vector<DecodeOutput> want = queries::fresh(emulated::backend(), DType::BF16);
  for (const auto& [algorithm, p] : {std::pair{"two-level", 3}, {"one-shot", 2}, {"gather", 5}}) {
    for (const std::int64_t most_queries : {std::int64_t{0}, queries::kMostQueries}) {
      CAPTURE(algorithm);
      CAPTURE(most_queries);
      std::vector<std::int64_t> n_allocated(want.size()), n_graphs(want.size());
      std::atomic<int> n_other = 0;
      run_nccl(Topology::pretend(p, p), 60, "",
               [&, p = p, algorithm = algorithm](const Ranks& ranks, NcclTransport& transport) {
                 const auto count = [&](std::int64_t sign, std::size_t i) {
                   when_all_are_here(ranks, [&] {
                     n_allocated[i] += sign * emulated::traffic().n_allocations;
                     n_graphs[i] += sign * emulated::traffic().n_replays;
                   });
                 };
                 n_other += queries::differences(
                     transport, {algorithm, emulated::backend(), DType::BF16, LeafOrder::kContiguous, most_queries}, want,
                     [&](std::size_t i) { count(-1, i); }, [&](std::size_t i) { count(1, i); });
               });
      CHECK(n_other == 0);
      for (std::size_t i = 0; i < want.size(); ++i) {
        CAPTURE(i);
        CHECK((n_allocated[i] == 0) == (i > 0 || most_queries > 0));
        CHECK(n_graphs[i] == (queries::kHasGraph[i] ? p : 0));
      }
    }
  }
}

TEST_CASE("nccl: 20 steps past the capacity have the bits of one rank, and all ranks launch graphs in the same steps") {
  one_shot::Run run{.p = 3, .steps = 20, .cut = one_shot::Cut::kEmpty, .dtype = DType::BF16, .group = 2};
  std::vector<one_shot::Run> runs{run};
  run.cut = one_shot::Cut::kLast, run.nodes = {0, 0, 1}, runs.push_back(run);
  run.cut = one_shot::Cut::kEven, run.order = LeafOrder::kDealt, runs.push_back(run);
  for (const one_shot::Run& each : runs) {
    for (const char* algorithm : {"two-level", "gather"}) {
      INFO(algorithm << ", " << one_shot::text(each));
      Traffic counted;
      const std::vector<std::int64_t> n_graphs = graphs_in_steps(each, algorithm, Kind::kProcesses, counted);
      check_predicted(counted, predict(find_algorithm(algorithm), one_shot::shape_of(each, kKeys + each.steps),
                                       one_shot::topology_of(each), one_shot::ranges_of(each, kKeys)));
      // New graphs in the first step, in which all caches take more memory, and in the one in which the range of the last
      // rank doubles.
      const int n_new = each.order == LeafOrder::kDealt ? 1 : 2;
      CHECK(n_graphs[0] == 0);
      CHECK(std::ranges::count(n_graphs, 0) == n_new);
      CHECK(std::ranges::count(n_graphs, 3) == each.steps - n_new);
    }
  }
}

TEST_CASE("nccl: where ranks are threads of one process, no graph holds a message. Of processes, one does") {
  // A ring decodes its own shard by a graph. One-shot sends nothing by NCCL.
  struct Case {
    const char* algorithm;
    std::vector<int> nodes;
    Kind kind;
    int replays;  ///< in the last step, of all ranks
  };
  for (const auto& [algorithm, nodes, kind, replays] :
       {Case{"two-level", {0, 0, 0}, Kind::kThreads, 0}, Case{"paper", {0, 0, 0}, Kind::kThreads, 0},
        Case{"ring", {0, 0, 0}, Kind::kThreads, 3}, Case{"one-shot", {0, 0, 0}, Kind::kThreads, 3}}) {
    CAPTURE(algorithm);
    Traffic counted;
    CHECK(graphs_in_steps({.p = 3, .steps = 6, .nodes = nodes}, algorithm, kind, counted).back() == replays);
  }
}

TEST_CASE("nccl: a cache that grew on one rank and was cut before a step has the bits of one rank, and graphs go on") {
  const auto workload = normal_workload(1312, {.kv_heads = 2, .head_dim = 64, .value_dim = 64, .n_keys = 400});
  const std::vector<KeyRange> ranges{{0, kLeafKeys}, {kLeafKeys, kOpenEnd}};
  const std::vector<std::int64_t> few{100};
  DecodeOutput want;
  std::atomic<int> n_wrong = 0;
  std::vector<std::int64_t> n_graphs;
  const auto decode = [&](Transport& transport, const std::vector<KeyRange>& cut, const auto& after) {
    const OwnedLeaves leaves(transport.topology().range_of(transport.rank(), cut));
    OpenShard shard = open_shard(emulated::backend(), workload->shape(), leaves, 100, workload->scale);
    const auto decoder = find_algorithm("gather").open(transport, shard, cut);
    for (int t = 0; t < 8; ++t) {
      // The second rank alone holds the keys from 64 on.
      const std::int64_t n = t == 4 ? 400 : 100;
      shard.grow(n, transport.size());
      fill(*shard.cache, *workload, std::vector{n});
      shard.cache->truncate(0, leaves.n_keys(100));
      after(decoder->step({workload->query(0), few}).copy());
    }
  };
  run_threads(Topology::pretend(1, 1), 60, [&](ThreadTransport& transport) {
    const emulated::SettingsScope defaults({});
    decode(transport, {{0, kOpenEnd}}, [&](const DecodeOutput& output) { want = output; });
  });
  run_nccl(Topology::pretend(2, 2), 60, "", [&](const Ranks& ranks, NcclTransport& transport) {
    decode(transport, ranges, [&](const DecodeOutput& output) {
      n_wrong += !same_bits(output, want);
      when_all_are_here(ranks, [&] { n_graphs.push_back(emulated::traffic().n_replays); });
    });
  });
  CHECK(n_wrong == 0);
  std::adjacent_difference(n_graphs.begin(), n_graphs.end(), n_graphs.begin());
  CHECK(std::vector(n_graphs.begin() + 1, n_graphs.end()) == std::vector<std::int64_t>{2, 2, 2, 0, 2, 2, 2});
}

TEST_CASE("nccl: decoders of one cache take turns") {
  const one_shot::Run run{.p = 2, .steps = 5, .cut = one_shot::Cut::kUneven};
  std::atomic<int> n_wrong = 0;
  run_nccl(Topology::pretend(2, 2), 60, "", [&](const Ranks&, NcclTransport& transport) {
    one_shot::RankRun rank(run, 250, transport);
    Workload& workload = *rank.workload;
    const std::vector<std::int64_t> lengths = workload.lengths(0);
    fill(*rank.shard.cache, workload, lengths);
    std::vector<std::unique_ptr<Decoder>> decoders;
    for (const char* algorithm : {"ring", "gather", "two-level"})
      decoders.push_back(find_algorithm(algorithm).open(transport, rank.shard, rank.ranges));
    std::vector<DecodeOutput> want;
    for (int t = 0; t < run.steps; ++t) want.push_back(decoders[0]->step({workload.query(t), lengths}).copy());
    // Also often enough in a row for a graph.
    int n = 0;
    for (const int n_steps : {1, 2, 3}) {
      for (const std::unique_ptr<Decoder>& decoder : decoders) {
        for (int i = 0; i < n_steps; ++i, ++n) {
          const DecodeOutput output = decoder->step({workload.query(n % run.steps), lengths}).copy();
          n_wrong += !same_bits(output, want[static_cast<std::size_t>(n % run.steps)]);
        }
      }
    }
  });
  CHECK(n_wrong == 0);
}

TEST_CASE("nccl: a rank that begins a new graph by itself is told so") {
  const auto workload = normal_workload(1311, {.kv_heads = 2, .head_dim = 64, .value_dim = 64, .n_keys = 128});
  const std::vector<KeyRange> ranges = even_ranges(128, 2, kLeafKeys);
  // In the fourth step, when all launch a graph.
  const auto error_of = [&](const std::function<void(OpenShard&)>& change) {
    return message([&] {
      run_nccl(Topology::pretend(2, 2), 60, "", [&](const Ranks&, NcclTransport& transport) {
        OpenRank rank(*workload, ranges, transport, "gather");
        for (int t = 0; t < 4; ++t) {
          if (t == 3 && transport.rank() == 1) change(rank.shard);
          rank.step();
        }
      });
    });
  };
  CHECK(error_of([](OpenShard&) {}) == "");
  CHECK(error_of([](OpenShard& shard) { shard.cache->reserve(4096); }).find("begins a new graph") != std::string::npos);
  // What would happen otherwise.
  CHECK(error_of([](OpenShard& shard) {
          dynamic_cast<DeviceSteps&>(*shard.session).stream().forget();
        }).find("one alone is a graph") != std::string::npos);
}

}  // namespace tree_attn::test
