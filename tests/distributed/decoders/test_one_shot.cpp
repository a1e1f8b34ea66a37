// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One launch per step: the bits of `gather` on any number of emulated devices, the bytes that are stored, a rank
/// that is missing, and what is refused.
#include "distributed/transport/thread_transport.hpp"
#include "gpu/backend/backends.hpp"
#include "gpu/backend/one_shot.hpp"
#include "gpu/platform/device_error.hpp"
#include "gpu/platform/device_traffic.hpp"
#include "gpu/platform/emulator/settings.hpp"
#include "gpu/platform/emulator/stream.hpp"
#include "tests/support/decoding.hpp"

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <set>

namespace tree_attn::test {
namespace {

constexpr double kTimeout = 120, kScale = 0.3;

/// How the ranks share the sequence.
enum class Cut { kEven, kUneven, kEmpty };

struct Run {
  int p = 1, steps = 3;
  Cut cut = Cut::kEven;
  LeafOrder order = LeafOrder::kContiguous;
  DType dtype = DType::F32;
  std::int64_t group = 1;
  std::uint64_t seed = 0;
};

WorkloadShape shape_of(const Run& run, std::int64_t n_keys) {
  return {{.dtype = run.dtype,
           .value_dtype = run.dtype,
           .batch = 2,
           .heads = 2 * run.group,
           .kv_heads = 2,
           .head_dim = 16,
           .value_dim = 16},
          n_keys,
          {},
          run.order};
}

/// Chunks of whole leaves; the last one is open if the sequence grows.
std::vector<KeyRange> ranges_of(const Run& run, std::int64_t n_keys) {
  if (run.order == LeafOrder::kDealt) return dealt_ranges(run.p);
  std::vector<std::int64_t> lengths;
  std::int64_t left = n_keys / kLeafKeys;
  for (int i = 0; i < run.p; ++i) {
    std::int64_t n = left / (run.p - i);
    if (run.cut == Cut::kUneven) n = i % 2 == 0 ? std::min<std::int64_t>(left, 1 + i) : left / 3;
    if (run.cut == Cut::kEmpty) n = i % 2 == 0 ? 0 : std::min<std::int64_t>(left, 2);
    if (i + 1 == run.p) n = left;
    lengths.push_back(n * kLeafKeys);
    left -= n;
  }
  std::vector<KeyRange> ranges = ranges_of_lengths(lengths);
  ranges.back().end = kOpenEnd;
  return ranges;
}

/// Decodes some steps by `gather` and by `one-shot` on one growing cache per rank.
/// @param[out] bytes stored by all ranks in the last step, and predicted
/// @returns outputs that differ
int differences(const Run& run, std::int64_t n_at_start, std::int64_t* stored = nullptr, std::int64_t* predicted = nullptr) {
  const emulated::SettingsScope scope(
      {.seed = run.seed, .n_workers = 2, .n_multiprocessors = 3, .n_hosts = run.p, .n_devices = run.p});
  const Topology topology = Topology::pretend(run.p, run.p);
  const WorkloadShape shape = shape_of(run, n_at_start + run.steps);
  const std::vector<KeyRange> ranges = ranges_of(run, n_at_start);
  std::atomic<int> n_wrong = 0;
  std::atomic<std::int64_t> n_stored = 0;
  run_threads(topology, kTimeout, [&](ThreadTransport& transport) {
    emulated::backend().use_gpu(transport.rank());
    const auto workload = make_workload(shape, 41, run.steps);
    const OwnedLeaves leaves(topology.range_of(transport.rank(), ranges), run.order);
    ShardDecoder shard(emulated::backend(), shape, leaves, leaves.n_keys(n_at_start), kScale);
    const auto gather = find_algorithm("gather").open(transport, shard, ranges);
    const auto one_shot = find_algorithm("one-shot").open(transport, shard, ranges);
    for (int t = 0; t < run.steps; ++t) {
      // The second sequence begins late, and its leaves end elsewhere.
      std::vector<std::int64_t> lengths = workload->lengths(t);
      lengths[1] = std::max<std::int64_t>(0, lengths[1] - 70);
      fill(shard.cache(), *workload, lengths);
      const DecodeOutput want = gather->step(workload->query(t), lengths).copy();
      transport.clear_traffic();
      if (!same_bits(one_shot->step(workload->query(t), lengths).copy(), want)) ++n_wrong;
      if (t + 1 == run.steps) n_stored += transport.traffic().bytes;
    }
  });
  if (stored != nullptr) *stored = n_stored;
  if (predicted != nullptr) {
    WorkloadShape at_end = shape;
    *predicted = predict(find_algorithm("one-shot"), at_end, topology, ranges).bytes;
  }
  return n_wrong;
}

std::string text(const Run& run) {
  std::ostringstream text;
  text << run.p << " ranks, " << run.steps << " steps, cut " << static_cast<int>(run.cut) << ", " << name_of(run.order)
       << ", " << name_of(run.dtype) << ", " << run.group << " queries, seed " << run.seed;
  return text.str();
}

}  // namespace

/// @tested{alg_3, Alg. 3}
TEST_CASE("one-shot: no bit differs from gather, on 1 to 8 devices, in both orders of leaves") {
  for (int p = 1; p <= 8; ++p) {
    for (const LeafOrder order : {LeafOrder::kContiguous, LeafOrder::kDealt}) {
      const Run run{.p = p,
                    .cut = Cut::kUneven,
                    .order = order,
                    .dtype = p % 2 == 0 ? DType::BF16 : DType::F32,
                    .group = p % 4 < 2 ? 4 : 1,
                    .seed = static_cast<std::uint64_t>(p % 5)};
      INFO(text(run));
      CHECK(differences(run, 900) == 0);
    }
  }
}

}  // namespace tree_attn::test
