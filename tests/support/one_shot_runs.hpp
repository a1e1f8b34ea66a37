// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Runs of `one-shot` beside `gather`: shapes, cuts and steps, for ranks that are threads and for ranks that are
/// processes.
#pragma once

#include "distributed/transport/thread_transport.hpp"
#include "gpu/backend/backends.hpp"
#include "gpu/emulator/settings.hpp"
#include "reference/state/owned_leaves.hpp"
#include "tests/support/decoding.hpp"
#include "tests/support/message.hpp"

#include <algorithm>
#include <chrono>
#include <latch>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace tree_attn::test::one_shot {

inline constexpr double kTimeout = 120, kScale = 0.3;

/// Division of the sequence among the ranks. kLast: the last rank has all of it.
enum class Cut { kEven, kUneven, kEmpty, kLast };

struct Run {
  int p = 1, steps = 3;
  Cut cut = Cut::kEven;
  LeafOrder order = LeafOrder::kContiguous;
  DType dtype = DType::F32;
  std::int64_t group = 1;
  std::uint64_t seed = 0;
  int slow_rank = -1;  ///< sleeps before every step
  std::int64_t head_dim = 16, value_dim = 16;
  std::int64_t batch = 2, kv_heads = 2;
  int n_multiprocessors = 3, major = 9;  ///< of the devices
  unsigned steps_done = 0;               ///< where the counter of steps begins
  std::vector<int> nodes = {};           ///< of every rank; empty: all are on one node
  int radix = 0, node_radix = 0;         ///< between nodes, and inside; 0: the default
  Network network = kMpiNetwork;

  std::optional<std::int64_t> slice_bytes{};
  PlanOptions options() const {
    return {
        .radix = radix, .node_radix = node_radix, .slice_bytes = slice_bytes, .network = network, .steps_done = steps_done};
  }
};

inline Topology topology_of(const Run& run) {
  return run.nodes.empty() ? Topology::pretend(run.p, run.p) : Topology(run.nodes);
}

inline WorkloadShape shape_of(const Run& run, std::int64_t n_keys) {
  return {{.dtype = run.dtype,
           .value_dtype = run.dtype,
           .batch = run.batch,
           .heads = run.kv_heads * run.group,
           .kv_heads = run.kv_heads,
           .head_dim = run.head_dim,
           .value_dim = run.value_dim},
          n_keys,
          {},
          run.order};
}

/// Chunks of whole leaves; the last one is open if the sequence grows.
inline std::vector<KeyRange> ranges_of(const Run& run, std::int64_t n_keys) {
  if (run.order == LeafOrder::kDealt) return dealt_ranges(run.p);
  std::vector<std::int64_t> lengths;
  std::int64_t left = n_keys / kLeafKeys;
  for (int i = 0; i < run.p; ++i) {
    std::int64_t n = left / (run.p - i);
    if (run.cut == Cut::kUneven) n = i % 2 == 0 ? std::min<std::int64_t>(left, 1 + i) : left / 3;
    if (run.cut == Cut::kEmpty) n = i % 2 == 0 ? 0 : std::min<std::int64_t>(left, 2);
    if (run.cut == Cut::kLast) n = 0;
    if (i + 1 == run.p) n = left;
    lengths.push_back(n * kLeafKeys);
    left -= n;
  }
  std::vector<KeyRange> ranges = ranges_of_lengths(lengths);
  ranges.back().end = kOpenEnd;
  return ranges;
}

/// A run on one rank: the sequence and its cut, and an empty cache for the rank's part of it.
struct RankRun {
  RankRun(const Run& of, std::int64_t n_at_start, const Transport& transport)
      : run(of),
        shape(shape_of(run, n_at_start + run.steps)),
        ranges(ranges_of(run, n_at_start)),
        workload(make_workload(shape, 41, run.steps)),
        leaves(transport.topology().range_of(transport.rank(), ranges), run.order),
        shard(open_shard(emulated::backend(), shape, leaves, n_at_start, kScale)) {}

  Run run;
  WorkloadShape shape;
  std::vector<KeyRange> ranges;
  std::unique_ptr<Workload> workload;
  OwnedLeaves leaves;
  OpenShard shard;
};

/// Decodes the steps of a run by one algorithm on an empty cache that grows.
/// @param before called before every step @param after called with the output of every step
template <class Before, class After>
void decode_steps(Transport& transport, RankRun& rank, std::string_view algorithm, const Before& before,
                  const After& after) {
  // The second sequence begins late, and its leaves end elsewhere.
  const auto lengths_at = [&](int t) {
    std::vector<std::int64_t> lengths = rank.workload->lengths(t);
    if (lengths.size() > 1) lengths[1] = std::max<std::int64_t>(0, lengths[1] - 70);
    return lengths;
  };
  KvCache& cache = *rank.shard.cache;
  const auto decoder = find_algorithm(algorithm).open(transport, rank.shard, rank.ranges, rank.run.options());
  for (int t = 0; t < rank.run.steps; ++t) {
    fill(cache, *rank.workload, lengths_at(t));
    before();
    after(t, decoder->step({rank.workload->query(t), lengths_at(t)}).copy());
  }
  for (std::int64_t i = 0; i < cache.shape().batch; ++i) cache.truncate(i, 0);
}

/// The outputs of `gather` on one rank, which has the bits of `gather` on any number of them.
inline std::vector<DecodeOutput> gather_alone(Run run, std::int64_t n_at_start) {
  run.p = 1, run.seed = 0, run.nodes = {};
  const emulated::SettingsScope scope({.n_multiprocessors = 1});
  std::vector<DecodeOutput> outputs;
  run_threads(Topology::pretend(1, 1), kTimeout, [&](ThreadTransport& transport) {
    RankRun rank(run, n_at_start, transport);
    decode_steps(
        transport, rank, "gather", [] {}, [&](int, DecodeOutput output) { outputs.push_back(std::move(output)); });
  });
  return outputs;
}

inline std::string text(const Run& run) {
  std::ostringstream text;
  text << run.p << " ranks, " << run.steps << " steps, cut " << static_cast<int>(run.cut) << ", " << name_of(run.order)
       << ", " << name_of(run.dtype) << ", " << run.group << " queries, seed " << run.seed << ", compute capability "
       << run.major << (run.slice_bytes ? ", in slices" : "");
  for (const int node : run.nodes) text << (&node == run.nodes.data() ? ", nodes " : " ") << node;
  return text.str();
}

/// Tests whether the last of the ranges, which is open, grows in a run.
inline bool opens_new_windows(const Run& run, std::int64_t n_at_start) {
  const KeyRange last = ranges_of(run, n_at_start).back();
  return closed(last, n_at_start + 1).end != closed(last, n_at_start + run.steps).end;
}

/// Decodes the steps of a run on one rank by `one-shot`.
/// @param given the outputs to expect; null: `gather` decodes them first @param[out] last traffic of the last step
/// @returns outputs that differ
inline int differences_on_rank(Transport& transport, const Run& run, std::int64_t n_at_start,
                               const std::vector<DecodeOutput>* given, Traffic& last) {
  RankRun rank(run, n_at_start, transport);
  // One algorithm after the other, so that nothing but the kernels holds a rank back.
  std::vector<DecodeOutput> want;
  if (given != nullptr) {
    want = *given;
  } else {
    decode_steps(
        transport, rank, "gather", [] {}, [&](int, DecodeOutput output) { want.push_back(std::move(output)); });
  }
  int n_wrong = 0;
  decode_steps(
      transport, rank, "one-shot",
      [&] {
        transport.clear_traffic();
        if (transport.rank() == run.slow_rank) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      },
      [&](int t, const DecodeOutput& output) {
        last = transport.traffic();
        if (!same_bits(output, want[static_cast<std::size_t>(t)])) ++n_wrong;
      });
  return n_wrong;
}

/// The last step. @param n_at_start keys before the first one
inline Prediction predicted(const Run& run, std::int64_t n_at_start) {
  return predict(find_algorithm("one-shot"), shape_of(run, n_at_start + run.steps), topology_of(run),
                 ranges_of(run, n_at_start), run.options());
}

/// On threads as ranks: checks the bits, and that what is counted in the last step is predicted. @returns the counts
inline Traffic check_run(const Run& run, std::int64_t n_at_start) {
  INFO(text(run));
  const emulated::SettingsScope scope({.seed = run.seed,
                                       .n_multiprocessors = run.n_multiprocessors,
                                       .n_hosts = run.p,
                                       .n_devices = run.p,
                                       .major = run.major});
  std::mutex mutex;
  Traffic counted;
  int n_wrong = 0;
  run_threads(topology_of(run), kTimeout, [&](ThreadTransport& transport) {
    emulated::backend().use_gpu(transport.rank());
    Traffic last;
    const int n = differences_on_rank(transport, run, n_at_start, nullptr, last);
    const std::lock_guard lock(mutex);
    n_wrong += n;
    add(counted, last);
  });
  CHECK(n_wrong == 0);
  check_predicted(counted, predicted(run, n_at_start));
  return counted;
}

/// Decodes two steps of a run of 600 keys on threads as ranks; one rank does something else in place of the second, and the
/// others wait for it. @param instead called with the latch that counts the others @param[out] lines what the others threw
/// @param grows whether a step of 500 keys comes before, after which all ranks open new windows
/// @returns the line that is reported
template <class Instead>
std::string without_rank(const Run& run, int missing, double timeout, std::set<std::string>& lines, const Instead& instead,
                         bool grows = false) {
  const emulated::SettingsScope scope({.n_hosts = run.p, .n_devices = run.p});
  const WorkloadShape shape = shape_of(run, 600);
  std::vector<KeyRange> ranges = even_ranges(grows ? 500 : 600, run.p, kLeafKeys);
  if (grows) ranges.back().end = kOpenEnd;
  std::mutex mutex;
  std::latch others(run.p - 1);
  return message<std::runtime_error>([&] {
    run_threads(topology_of(run), timeout, [&](ThreadTransport& transport) {
      emulated::backend().use_gpu(transport.rank());
      const auto workload = make_workload(shape, 43, 1);
      const std::vector<std::int64_t> lengths = workload->lengths(0);
      OpenShard shard =
          open_shard(emulated::backend(), shape, transport.topology().range_of(transport.rank(), ranges), 0, kScale);
      const auto decoder = find_algorithm("one-shot").open(transport, shard, ranges, run.options());
      for (const std::int64_t n : {500, 600}) {
        const std::vector<std::int64_t> at_first(lengths.size(), n);
        if (n == 500 && !grows) continue;
        fill(*shard.cache, *workload, at_first);
        decoder->step({workload->query(0), at_first});
      }
      if (transport.rank() == missing) return instead(transport, others);
      try {
        decoder->step({workload->query(0), lengths});
      } catch (const std::runtime_error& error) {
        const std::lock_guard lock(mutex);
        lines.insert(error.what());
        others.count_down();
        throw;
      }
    });
  });
}

}  // namespace tree_attn::test::one_shot
