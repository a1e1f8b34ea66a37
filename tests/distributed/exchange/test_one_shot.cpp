// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One launch per step: the bits of `gather` on any number of emulated devices, the bytes that are stored, a rank
/// that is missing, and what is refused.
#include "gpu/backend/one_shot_session.hpp"
#include "gpu/emulator/stream.hpp"
#include "gpu/engine/peers.hpp"
#include "gpu/platform/launch.hpp"
#include "gpu/types/device_traffic.hpp"
#include "reference/data/input_error.hpp"
#include "tests/support/one_shot_runs.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/sweep.hpp"

#include <atomic>
#include <chrono>
#include <limits>
#include <thread>

namespace tree_attn::test::one_shot {

/// Shards of several leaves, more query tiles than blocks, and a last range that doubles on the way, so that all ranks open
/// new windows. Types, queries, cuts, seeds and devices in turn. Every third run has 20 steps of few rows, during which
/// the counter of steps wraps.
/// @tested{alg_3, Alg. 3}
TEST_CASE("one-shot: no bit differs from gather, on 1 to 8 devices, in three steps and in twenty") {
  constexpr std::pair<DType, int> kRows[]{{DType::F32, 1}, {DType::BF16, 3}, {DType::BF16, 11}, {DType::F32, 4}};
  constexpr int kMajors[]{9, 8, 12};
  int n = 0;
  for (int p = 1; p <= 8; ++p) {
    if (kIsSanitized && p != 2 && p != 5) continue;
    for (int i = 0; i < (takes_all_cases() ? 30 : 3); ++i, ++n) {
      const auto& [dtype, group] = kRows[(n + n / 4) % 4];
      Run run{.p = p,
              .cut = static_cast<Cut>(n % 3),
              .dtype = dtype,
              .group = group,
              .seed = static_cast<std::uint64_t>(n % 5),
              .major = kMajors[(n + n / 3) % 3]};
      if (i % 3 == 2) run.steps = 20, run.batch = run.kv_heads = 1, run.n_multiprocessors = 1, run.steps_done = 0U - 10;
      CHECK(opens_new_windows(run, 510));
      check_run(run, 510);
    }
  }
}

/// Ranks without keys send too: if one did not, the others would overwrite what it has not read.
TEST_CASE("one-shot: ranks without keys, one of which is slow") {
  const Run run{.p = 4, .steps = 6, .cut = Cut::kEmpty, .seed = 1, .slow_rank = 2};
  CHECK(ranges_of(run, 300)[2].empty());
  check_run(run, 300);
}

TEST_CASE("one-shot: values without components have the sums of gather, a packet for each state") {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const Traffic stored = check_run({.p = 3, .dtype = dtype, .value_dim = 0}, 64 * 3);
    CHECK(stored.bytes == 3 * 2 * 4 * 16);
  }
}

TEST_CASE("one-shot: the bytes that kernels store into windows of other devices are those predicted, and what it counts") {
  for (const Cut cut : {Cut::kEven, Cut::kUneven, Cut::kEmpty}) {
    for (const int p : {1, 2, 5}) {
      const Traffic stored = check_run({.p = p, .cut = cut}, 1000);
      CHECK(stored.messages == p * (p - 1));
      CHECK((stored.bytes > 0) == (p > 1));
    }
  }
  // A state of 2 + 16 floats is six packets of 16 bytes; a rank without keys sends one packet for each of 4 rows.
  const std::vector<KeyRange> few{{0, 64}, {64, 256}, {256, 256}};
  CHECK(one_shot_bytes(few, 0, 4, 16) == 4 * 6 * 16);
  CHECK(one_shot_bytes(few, 1, 4, 16) == 2 * 4 * 6 * 16);
  CHECK(one_shot_bytes(few, 2, 4, 16) == 4 * 16);
  // Four slots per row: one, two, and one of the rank without keys. Both halves.
  CHECK(one_shot_window_bytes(few, 4, 16) == 2 * 4 * 4 * 6 * 16);
}

/// @tested{alg_3, Alg. 3}
TEST_CASE("one-shot: predicted are one store per pair of ranks and the windows") {
  for (const int p : {1, 2, 8, 16}) {
    const Run run{.p = p};
    INFO(text(run));
    const WorkloadShape shape = shape_of(run, 64 * p);
    const Prediction predicted =
        predict(find_algorithm("one-shot"), shape, Topology::pretend(p, p), ranges_of(run, 64 * p), {}, kPaperCluster);
    // 4 rows; a state of 18 floats is six packets.
    CHECK(predicted.rounds == (p == 1 ? 0 : 1));
    CHECK(predicted.messages == p * (p - 1));
    CHECK(predicted.bytes == p * (p - 1) * 4 * 6 * 16);
    CHECK(predicted.bytes_between_nodes == 0);
    CHECK(predicted.collectives == 1);
    CHECK(predicted.merge_steps == p - 1);
    CHECK(predicted.peak_elements == 64 * 4 * 2 * 16 + 4 * 16 + 4 * (18 + 17) + 2 * p * 4 * 6 * 4);
    CHECK(predicted.peak_kv_bytes == 64 * 4 * 2 * 16 * 4);
  }
}

/// @param stays whether the decoder of that rank stays, as that of a device which hangs; otherwise it ends
static void check_missing_rank(bool stays) {
  const auto start = std::chrono::steady_clock::now();
  std::set<std::string> errors;
  without_rank({.p = 3}, 1, 0.5, errors, [stays](Transport&, std::latch& others) {
    if (stays) others.wait();
  });
  // Any row may be the first that has waited too long. The first rank to give up may end the wait of the other.
  CHECK(errors.size() == 2);
  int rank = 0, n_missing = 0;
  for (const std::string& error : errors) {
    CAPTURE(error);
    const std::string who = "rank " + std::to_string(rank) + ", step 2";
    const bool is_missing = error.starts_with(who + ": no states from rank 1, row ") && error.ends_with(", for 0.5 s");
    CHECK((is_missing || error == who + ", gave up: another rank failed"));
    n_missing += is_missing ? 1 : 0;
    rank += 2;
  }
  CHECK(n_missing >= 1);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}

TEST_CASE("one-shot: a rank that never decodes ends the others within the deadline, in one line that names it") {
  check_missing_rank(true);
}

TEST_CASE("one-shot: the window of a rank that has failed stays until no other rank stores into it") {
  for (int i = 0; i < 3; ++i) check_missing_rank(false);
}

/// The kernels of the others wait in their second step when rank 1 throws; its error is the one that is reported.
TEST_CASE("one-shot: a rank that fails ends the kernels that wait for it, also without a time limit") {
  for (const double timeout : {60.0, std::numeric_limits<double>::infinity()}) {
    CAPTURE(timeout);
    const auto start = std::chrono::steady_clock::now();
    std::set<std::string> followed;
    const std::string failed = without_rank({.p = 3}, 1, timeout, followed, [](Transport&, std::latch&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      throw std::runtime_error("no more of this");
    });
    CHECK(failed == "rank 1: no more of this");
    CHECK(followed == std::set<std::string>{"rank 0, step 2, gave up: another rank failed",
                                            "rank 2, step 2, gave up: another rank failed"});
    REQUIRE(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));
  }
}

TEST_CASE("one-shot: an error counts the steps before new windows were opened") {
  for (const bool grows : {false, true}) {
    std::set<std::string> followed;
    const auto fails = [](Transport&, std::latch&) { throw std::runtime_error("no more of this"); };
    CHECK(without_rank({.p = 2}, 1, 60, followed, fails, grows) == "rank 1: no more of this");
    const std::string step = grows ? "3" : "2";
    CHECK(followed == std::set<std::string>{"rank 0, step " + step + ", gave up: another rank failed"});
  }
}

/// Packets of zeros would be taken for those of step 0, before the slow rank has sent any.
TEST_CASE("one-shot: new windows, which hold zeros, do not begin with the step after 2^32 - 1") {
  const Run run{.p = 2, .steps = 5, .slow_rank = 1, .steps_done = 0U - 4};
  CHECK(opens_new_windows(run, 510));
  check_run(run, 510);
}

TEST_CASE("one-shot: two ranks on one device are refused in a line that names both") {
  const Run run{.p = 2};
  const emulated::SettingsScope scope({.n_hosts = run.p, .n_devices = run.p});
  const std::string line = message([&] {
    run_threads(Topology::pretend(run.p, run.p), kTimeout, [&](ThreadTransport& transport) {
      emulated::backend().use_gpu(1);
      RankRun rank(run, 600, transport);
      decode_steps(
          transport, rank, "one-shot", [] {}, [](int, const DecodeOutput&) {});
    });
  });
  const auto says = [&line](const char* ranks) {
    return line.find(std::string("one-shot: ranks ") + ranks + ": both on device 1") != std::string::npos;
  };
  CHECK((says("0 and 1") || says("1 and 0")));
}

/// On a GPU that is tests/bench/exchange/on_parts.cpp.
TEST_CASE("one-shot: ranks on parts of one device have the bits of gather, and plan for their parts") {
  const Run run{.p = 3, .group = 2};
  const std::int64_t n_keys = 700;
  const std::vector<DecodeOutput> want = gather_alone(run, n_keys);
  const emulated::SettingsScope scope(
      {.seed = 1, .n_multiprocessors = 6, .n_hosts = run.p, .n_devices = 1, .has_peer_access = false});
  std::atomic<int> n_wrong = 0, n_whole = 0;
  run_threads(Topology::pretend(run.p, run.p), kTimeout, [&](ThreadTransport& transport) {
    const DevicePart part(2);
    n_whole += emulated::device().n_multiprocessors != 2;
    RankRun rank(run, n_keys, transport);
    decode_steps(
        transport, rank, "one-shot", [] {},
        [&](int t, const DecodeOutput& output) { n_wrong += !same_bits(output, want[static_cast<std::size_t>(t)]); });
  });
  CHECK(n_wrong == 0);
  CHECK(n_whole == 0);
  CHECK(emulated::device().n_multiprocessors == 6);
}

TEST_CASE("one-shot: what its kernels cannot combine is refused in a few words") {
  const Run run{.p = 2};
  const WorkloadShape shape = shape_of(run, 600);
  const Algorithm& algorithm = find_algorithm("one-shot");
  const Topology node = Topology::pretend(2, 2);
  const std::vector<KeyRange> ranges = ranges_of(run, 600);
  CHECK(algorithm.refusal(node, &emulated::backend(), ranges, shape) == "");
  CHECK(algorithm.refusal(node, &cpu_backend(), ranges, shape).find("--backend cpu has none") != std::string::npos);
  // For predictions too, which have no backend.
  const auto check = [&](const Topology& topology, const WorkloadShape& large, const char* why) {
    const std::vector<KeyRange> all = even_ranges(large.n_keys, topology.size(), kLeafKeys);
    CHECK(algorithm.refusal(topology, nullptr, all, large) == why);
    CHECK_THROWS_WITH_AS(predict(algorithm, large, topology, all), ("one-shot: " + std::string(why)).c_str(),
                         std::logic_error);
  };
  check(Topology::pretend(17, 17), shape, "a node of 17 ranks; at most 16; use two-level");
  check(Topology::pretend(2, 1), shape, "its kernels reach the devices of one node, and the ranks are on 2; use two-level");
  check(Topology(std::vector{0, 1, 0}), shape,
        "its kernels reach the devices of one node, and the ranks are on 2; use two-level");
  // States of 258 floats for 127 rows are 131,064 bytes; four leaves are one subtree, three are two.
  Run large = run;
  large.batch = large.kv_heads = 1, large.head_dim = large.value_dim = 256, large.group = 127;
  CHECK(algorithm.refusal(node, nullptr, even_ranges(512, 2, kLeafKeys), shape_of(large, 512)) == "");
  large.group = 128;
  check(node, shape_of(large, 512), "rank 0 has 129 KiB of states; at most 128; use two-level");
  large.group = 64;
  CHECK(algorithm.refusal(node, nullptr, even_ranges(512, 2, kLeafKeys), shape_of(large, 512)) == "");
  check(node, shape_of(large, 448), "rank 1 has 129 KiB of states; at most 128; use two-level");
}

/// Nothing else ends: no rank waits for another that has been refused.
TEST_CASE("one-shot: every rank refuses several nodes, many ranks and many states, also those that come with growth") {
  const auto refused_on_all = [](const Run& run, std::int64_t n_keys, const char* why) {
    INFO(text(run));
    const emulated::SettingsScope scope({.n_hosts = run.p, .n_devices = run.p});
    std::atomic<int> n_refused = 0;
    run_threads(topology_of(run), kTimeout, [&](ThreadTransport& transport) {
      emulated::backend().use_gpu(transport.rank());
      Traffic last;
      const std::vector<DecodeOutput> any(static_cast<std::size_t>(run.steps));
      const std::string line = message<InputError>([&] { differences_on_rank(transport, run, n_keys, &any, last); });
      n_refused += line == std::string("one-shot: ") + why;
    });
    CHECK(n_refused == run.p);
  };
  refused_on_all({.p = 3, .nodes = {0, 0, 1}}, 300,
                 "its kernels reach the devices of one node, and the ranks are on 2; use two-level");
  refused_on_all({.p = 17}, 300, "a node of 17 ranks; at most 16; use two-level");
  // Ranges that do not grow are refused where the decoder is opened.
  const Run apart{.p = 2, .nodes = {0, 1}};
  const emulated::SettingsScope scope({.n_hosts = 2, .n_devices = 2});
  std::atomic<int> n_not_opened = 0;
  run_threads(topology_of(apart), kTimeout, [&](ThreadTransport& transport) {
    emulated::backend().use_gpu(transport.rank());
    const std::vector<KeyRange> ranges = even_ranges(300, apart.p, kLeafKeys);
    OpenShard shard = open_shard(emulated::backend(), shape_of(apart, 300),
                                 transport.topology().range_of(transport.rank(), ranges), 0, kScale);
    n_not_opened += !message<InputError>([&] { find_algorithm("one-shot").open(transport, shard, ranges); }).empty();
  });
  CHECK(n_not_opened == apart.p);
  // From 513 keys on the open range is [64, 1024) instead of [64, 512): four subtrees instead of three.
  const Run grows{
      .p = 2, .steps = 4, .cut = Cut::kUneven, .group = 40, .head_dim = 256, .value_dim = 256, .batch = 1, .kv_heads = 1};
  CHECK(opens_new_windows(grows, 510));
  refused_on_all(grows, 510, "rank 1 has 161 KiB of states; at most 128; use two-level");
}

}  // namespace tree_attn::test::one_shot
