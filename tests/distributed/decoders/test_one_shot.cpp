// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One launch per step: the bits of `gather` on any number of emulated devices, the bytes that are stored, a rank
/// that is missing, and what is refused.
#include "distributed/transport/thread_transport.hpp"
#include "gpu/backend/backends.hpp"
#include "gpu/backend/one_shot_session.hpp"
#include "gpu/parts/peers.hpp"
#include "gpu/platform/device_error.hpp"
#include "gpu/platform/device_traffic.hpp"
#include "gpu/platform/emulator/settings.hpp"
#include "gpu/platform/emulator/stream.hpp"
#include "tests/support/decoding.hpp"

#include <atomic>
#include <chrono>
#include <latch>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

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
  int slow_rank = -1;  ///< sleeps before every step
  std::int64_t head_dim = 16;
};

WorkloadShape shape_of(const Run& run, std::int64_t n_keys) {
  return {{.dtype = run.dtype,
           .value_dtype = run.dtype,
           .batch = 2,
           .heads = 2 * run.group,
           .kv_heads = 2,
           .head_dim = run.head_dim,
           .value_dim = run.head_dim},
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
    // One algorithm after the other, so that nothing but the kernels holds a rank back. The second sequence begins late, and
    // its leaves end elsewhere.
    const auto lengths_at = [&](int t) {
      std::vector<std::int64_t> lengths = workload->lengths(t);
      lengths[1] = std::max<std::int64_t>(0, lengths[1] - 70);
      return lengths;
    };
    std::vector<DecodeOutput> want;
    const auto gather = find_algorithm("gather").open(transport, shard, ranges);
    for (int t = 0; t < run.steps; ++t) {
      fill(shard.cache(), *workload, lengths_at(t));
      want.push_back(gather->step(workload->query(t), lengths_at(t)).copy());
    }
    for (std::int64_t i = 0; i < shape.batch; ++i) shard.cache().truncate(i, 0);
    const auto one_shot = find_algorithm("one-shot").open(transport, shard, ranges);
    for (int t = 0; t < run.steps; ++t) {
      fill(shard.cache(), *workload, lengths_at(t));
      transport.clear_traffic();
      if (transport.rank() == run.slow_rank) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      if (!same_bits(one_shot->step(workload->query(t), lengths_at(t)).copy(), want[static_cast<std::size_t>(t)])) ++n_wrong;
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

/// Every number of devices, and around it shapes, cuts and seeds in turn.
/// @tested{alg_3, Alg. 3}
TEST_CASE("one-shot: no bit differs from gather, on 1 to 8 devices, in both orders of leaves") {
  int n = 0;
  for (int p = 1; p <= 8; ++p) {
    for (const LeafOrder order : {LeafOrder::kContiguous, LeafOrder::kDealt}) {
      for (const auto& [dtype, group] :
           {std::pair(DType::F32, 1), std::pair(DType::BF16, 3), std::pair(DType::BF16, 1), std::pair(DType::F32, 4)}) {
        const Run run{.p = p,
                      .steps = 2,
                      .cut = static_cast<Cut>(n % 3),
                      .order = order,
                      .dtype = dtype,
                      .group = group,
                      .seed = static_cast<std::uint64_t>(n % 5)};
        ++n;
        INFO(text(run));
        CHECK(differences(run, 700) == 0);
      }
    }
  }
}

/// The last range doubles on the way, so that all ranks open new windows.
TEST_CASE("one-shot: 20 steps of a growing sequence, under five orders of the emulator") {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const LeafOrder order = seed % 2 == 0 ? LeafOrder::kContiguous : LeafOrder::kDealt;
    const Run run{.p = 3, .steps = 20, .cut = Cut::kUneven, .order = order, .group = 4, .seed = seed};
    INFO(text(run));
    CHECK(differences(run, 500) == 0);
  }
}

/// Ranks without keys send too: if one did not, the others would overwrite what it has not read.
TEST_CASE("one-shot: ranks without keys, one of which is slow") {
  const Run run{.p = 4, .steps = 6, .cut = Cut::kEmpty, .seed = 1, .slow_rank = 2};
  CHECK(ranges_of(run, 300)[2].empty());
  CHECK(differences(run, 300) == 0);
}

TEST_CASE("one-shot: the bytes that kernels store into windows of other devices are those predicted") {
  for (const Cut cut : {Cut::kEven, Cut::kUneven, Cut::kEmpty}) {
    for (const int p : {1, 2, 5}) {
      const Run run{.p = p, .cut = cut};
      INFO(text(run));
      std::int64_t stored = -1, predicted = -2;
      CHECK(differences(run, 1000, &stored, &predicted) == 0);
      CHECK(stored == predicted);
      CHECK((stored > 0) == (p > 1));
    }
  }
  // A state of 2 + 16 floats is six packets of 16 bytes; a rank without keys sends one packet for each of 4 rows.
  const std::vector<KeyRange> few{{0, 64}, {64, 256}, {256, 256}};
  CHECK(one_shot_bytes(few, 0, 1, 4, 16) == 4 * 6 * 16);
  CHECK(one_shot_bytes(few, 1, 0, 4, 16) == 2 * 4 * 6 * 16);
  CHECK(one_shot_bytes(few, 2, 1, 4, 16) == 4 * 16);
  // Of 1000 rows the three ranks own 334, 333 and 333. A finished row of 16 + 1 floats is six packets too.
  CHECK(one_shot_bytes(few, 1, 0, 1000, 16) == 16 * (334 * 2 * 6 + 333 * 6));
  CHECK(one_shot_bytes(few, 2, 1, 1000, 16) == 16 * (333 + 333 * 6));
}

/// @tested{alg_3, Alg. 3}
TEST_CASE("one-shot: beyond 128 KiB of states rows have owners, and no bit differs") {
  const std::vector<Run> runs{
      {.cut = Cut::kUneven, .dtype = DType::F32},
      {.cut = Cut::kEmpty, .dtype = DType::BF16},
      {.cut = Cut::kUneven, .order = LeafOrder::kDealt, .dtype = DType::BF16},
  };
  for (Run run : runs) {
    run.p = 3, run.steps = 2, run.group = 33, run.seed = 2, run.slow_rank = 1, run.head_dim = 256;
    INFO(text(run));
    CHECK(Peers::of(closed(ranges_of(run, 250), 252), 0, 2 * 2 * 33, 256).has_owners);
    std::int64_t stored = -1, predicted = -2;
    CHECK(differences(run, 250, &stored, &predicted) == 0);
    CHECK(stored == predicted);
  }
}

TEST_CASE("one-shot: a rank that never decodes ends the others within the deadline, in one line that names it") {
  constexpr double kShort = 0.5;
  const Run run{.p = 3};
  const emulated::SettingsScope scope({.n_hosts = run.p, .n_devices = run.p});
  const WorkloadShape shape = shape_of(run, 600);
  const std::vector<KeyRange> ranges = even_ranges(600, run.p, kLeafKeys);
  const Topology topology = Topology::pretend(run.p, run.p);
  const auto start = std::chrono::steady_clock::now();
  std::mutex mutex;
  std::set<std::string> errors;
  std::latch others(run.p - 1);
  try {
    run_threads(topology, kShort, [&](ThreadTransport& transport) {
      emulated::backend().use_gpu(transport.rank());
      const auto workload = make_workload(shape, 43, 1);
      const std::vector<std::int64_t> lengths = workload->lengths(0);
      ShardDecoder shard(emulated::backend(), shape, topology.range_of(transport.rank(), ranges), kScale);
      fill(shard.cache(), *workload, lengths);
      const auto decoder = find_algorithm("one-shot").open(transport, shard, ranges);
      decoder->step(workload->query(0), lengths);
      // Its window stays, as that of a device which hangs.
      if (transport.rank() == 1) return others.wait();
      try {
        decoder->step(workload->query(0), lengths);
      } catch (const DeviceError& error) {
        const std::lock_guard lock(mutex);
        errors.insert(error.what());
      }
      others.count_down();
    });
  } catch (const TransportError&) {
  }
  // Any row may be the first that has waited too long.
  CHECK(errors.size() == 2);
  int rank = 0;
  for (const std::string& error : errors) {
    CAPTURE(error);
    CHECK(error.starts_with("rank " + std::to_string(rank) + ", step 2: no states from rank 1, row "));
    CHECK(error.ends_with(", for 0.5 s"));
    rank += 2;
  }
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}

TEST_CASE("one-shot: what its kernels cannot combine is refused in a few words") {
  const Run run{.p = 2};
  const WorkloadShape shape = shape_of(run, 600);
  const std::vector<KeyRange> ranges = even_ranges(600, 2, kLeafKeys);
  const Algorithm& algorithm = find_algorithm("one-shot");
  const auto refusal = [&](const Backend& backend, const Topology& topology, const WorkloadShape& of) {
    ThreadNetwork network(topology.size(), kTimeout);
    const ThreadTransport transport(network, topology, 0);
    return algorithm.refusal(backend, transport, ranges, of);
  };
  const Topology node = Topology::pretend(2, 2);
  CHECK(refusal(emulated::backend(), node, shape) == "");
  CHECK(refusal(cpu_backend(), node, shape).find("--backend cpu has none") != std::string::npos);
  CHECK(refusal(emulated::backend(), Topology::pretend(2, 1), shape).find("2 nodes") != std::string::npos);
  CHECK(refusal(emulated::backend(), Topology::pretend(17, 17), shape).find("17 ranks; at most 16") != std::string::npos);
}

}  // namespace tree_attn::test
