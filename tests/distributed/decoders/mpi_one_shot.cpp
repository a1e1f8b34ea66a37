// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `one-shot` where every rank is a process: each maps the windows of the others.
#include "tree_attn/gpu/backend/one_shot_session.hpp"
#include "tree_attn/gpu/platform/device_error.hpp"
#include "tree_attn/tests/support/mpi_test_session.hpp"
#include "tree_attn/tests/support/one_shot_runs.hpp"

#include <chrono>
#include <memory>
#include <set>

namespace tree_attn::test::one_shot {
namespace {

std::unique_ptr<Transport> open_transport() {
  const MpiRanks& ranks = session().ranks();
  return ranks.open_transport(Topology::pretend(ranks.size(), ranks.size()));
}

/// gather_alone() on rank 0, for all: on every rank it would take longer than the runs that are compared with it.
std::vector<DecodeOutput> gather_for_all(const Run& run, std::int64_t n_at_start) {
  const MpiRanks& ranks = session().ranks();
  std::vector<DecodeOutput> outputs(static_cast<std::size_t>(run.steps));
  if (ranks.rank() == 0) outputs = gather_alone(run, n_at_start);
  const WorkloadShape shape = shape_of(run, n_at_start + run.steps);
  for (DecodeOutput& output : outputs) {
    output.out.resize(static_cast<std::size_t>(shape.n_rows() * shape.value_dim));
    output.lse.resize(static_cast<std::size_t>(shape.n_rows()));
    for (std::vector<float>* part : {&output.out, &output.lse})
      ranks.broadcast(std::as_writable_bytes(std::span(*part)), 0, "the outputs of gather");
  }
  return outputs;
}

/// The processes of this machine as one node, and as several, of which the last one may be smaller.
std::vector<std::vector<int>> nodes_of(int p) {
  std::vector<std::vector<int>> all;
  for (const int n : std::set<int>{1, 2, 3, p}) {
    if (n > p) break;
    std::vector<int>& nodes = all.emplace_back();
    for (int rank = 0; rank < p; ++rank) nodes.push_back(rank / n);
  }
  return all;
}

/// @tested{alg_3, Alg. 3}
TEST_CASE("one-shot on processes: 20 steps have the bits of gather, on one node and several, and the counts predicted") {
  const MpiRanks& ranks = session().ranks();
  int n = 0;
  for (const std::vector<int>& nodes : nodes_of(ranks.size())) {
    for (int i = 0; i < 2; ++i) {
      const Run run{.p = ranks.size(),
                    .steps = 20,
                    .cut = static_cast<Cut>(n % 4),
                    .dtype = n % 3 == 0 ? DType::F32 : DType::BF16,
                    .group = n % 2 == 0 ? 1 : 4,
                    .seed = static_cast<std::uint64_t>(n % 5),
                    .slow_rank = n % 4 == 1 ? ranks.size() - 1 : -1,
                    .batch = 1,
                    .kv_heads = 1,
                    .steps_done = n % 5 == 4 ? 0U - 10 : 0,
                    .nodes = nodes};
      ++n;
      INFO(text(run));
      const std::int64_t n_keys = 64 * run.p + 50;
      const std::vector<DecodeOutput> want = gather_for_all(run, n_keys);
      const auto transport = ranks.open_transport(topology_of(run));
      const emulated::SettingsScope scope({.seed = run.seed, .n_workers = 1});
      Traffic last;
      CHECK(differences_on_rank(*transport, run, n_keys, &want, last) == 0);
      const Counts predicted = predicted_counts(run, n_keys);
      CHECK(ranks.all_sum(last.messages) == predicted.messages);
      CHECK(ranks.all_sum(last.bytes) == predicted.bytes);
      CHECK(ranks.all_sum(last.bytes_between_nodes) == predicted.between_nodes);
    }
  }
}

TEST_CASE("one-shot on processes: slow ranks, windows on the host and owners change no bit, and bytes are predicted") {
  const auto transport = open_transport();
  const int p = transport->size();
  for (const auto& [run, n_keys] :
       {std::pair{Run{.p = p, .steps = 4, .cut = Cut::kEmpty, .seed = 1, .slow_rank = p - 1}, 700},
        {Run{.p = p, .seed = 2, .windows_on_host = true}, 510},
        {with_owners(p), 126}}) {
    INFO(text(run));
    const emulated::SettingsScope scope({.seed = run.seed, .n_workers = 1, .has_peer_access = !run.windows_on_host});
    Traffic last;
    CHECK(differences_on_rank(*transport, run, n_keys, nullptr, last) == 0);
    const Counts predicted = predicted_counts(run, n_keys);
    CHECK(session().ranks().all_sum(last.bytes) == predicted.bytes);
    CHECK(session().ranks().all_sum(last.messages) == predicted.messages);
  }
}

/// Decodes two steps of a run of 600 keys, the second without one rank. @returns what ended it on the others
std::string line_without(int missing, const Run& run) {
  const MpiRanks& ranks = session().ranks();
  const emulated::SettingsScope scope({.n_workers = 1});
  emulated::backend().use_gpu(ranks.rank());
  const WorkloadShape shape = shape_of(run, 600);
  const std::vector<KeyRange> ranges = even_ranges(600, run.p, kLeafKeys);
  const auto workload = make_workload(shape, 43, 1);
  const std::vector<std::int64_t> lengths = workload->lengths(0);
  OpenShard shard = open_shard(emulated::backend(), shape, ranges[static_cast<std::size_t>(ranks.rank())], kScale);
  fill(*shard.cache, *workload, lengths);
  const MpiRanks limited(ranks.comm(), 0.5);
  const auto transport = limited.open_transport(topology_of(run));
  const auto decoder = find_algorithm("one-shot").open(*transport, shard, ranges);
  const auto step = [&] { decoder->step({workload->query(0), lengths}); };
  CHECK_NOTHROW(step());

  const auto start = std::chrono::steady_clock::now();
  std::string line;
  try {
    if (ranks.rank() != missing) step();
  } catch (const std::runtime_error& error) {
    line = error.what();
  }
  ranks.barrier();
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
  // Messages that were sent must be received: MPICH would give them to a communicator of a later test.
  if (!run.nodes.empty() && ranks.rank() == missing) CHECK_NOTHROW(step());
  ranks.barrier();
  return line;
}

TEST_CASE("one-shot on processes: a rank that never decodes ends the others within the deadline") {
  const MpiRanks& ranks = session().ranks();
  if (ranks.size() == 1) return;
  const std::string line = line_without(1, {.p = ranks.size()});
  CAPTURE(line);
  if (ranks.rank() == 1) return;
  CHECK(line.starts_with("rank " + std::to_string(ranks.rank()) + ", step 2: no states from rank 1, row "));
  CHECK(line.ends_with(", for 0.5 s"));
}

TEST_CASE("one-shot on processes of several nodes: a rank of another node that never sends ends the wait for it") {
  const MpiRanks& ranks = session().ranks();
  if (ranks.size() == 1) return;
  Run run{.p = ranks.size(), .nodes = std::vector<int>(static_cast<std::size_t>(ranks.size()), 0)};
  run.nodes.back() = 1;
  const std::string line = line_without(run.p - 1, run);
  CAPTURE(line);
  if (ranks.rank() == run.p - 1) return;
  CHECK(line.starts_with("rank " + std::to_string(ranks.rank()) + " waited "));
  CHECK(line.find(" s for a message") != std::string::npos);
  CHECK(line.ends_with(" and gave up"));
}

TEST_CASE("one-shot on processes: a window that cannot be opened is named with both ranks") {
  const MpiRanks& ranks = session().ranks();
  if (ranks.size() == 1) return;
  emulated::backend().use_gpu(ranks.rank());
  const Run run{.p = ranks.size()};
  const WorkloadShape shape = shape_of(run, 600);
  const std::vector<KeyRange> ranges = even_ranges(600, run.p, kLeafKeys);
  OpenShard shard = open_shard(emulated::backend(), shape, ranges[static_cast<std::size_t>(ranks.rank())], kScale);
  const auto decoder = open_one_shot(*shard.cache, kScale, {.timeout = kTimeout});
  NodeWindow own = decoder->open_window(ranges, ranks.rank(), ranks.rank(), true);
  if (ranks.rank() == 1) own.handle = {};
  const std::vector<NodeWindow> all = ranks.all_gather(std::span<const NodeWindow>(&own, 1), "windows");
  if (ranks.rank() == 0) {
    std::string line;
    try {
      decoder->connect(all);
    } catch (const DeviceError& error) {
      line = error.what();
    }
    CAPTURE(line);
    CHECK(line.starts_with("one-shot: ranks 0 and 1: the window of process 0: "));
  }
  ranks.barrier();
}

}  // namespace
}  // namespace tree_attn::test::one_shot
